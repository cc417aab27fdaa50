"""`python -m spark_log.cli`."""

from spark_log.cli.main import main

main()

"""The file that the Flex Template's launcher runs; the program is pipelines/dataflow/template.py."""

from pipelines.dataflow.template import main

if __name__ == "__main__":
    main()

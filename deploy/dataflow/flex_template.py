"""The file that the Flex Template's launcher runs; the program is pipelines/dataflow/flex_template.py."""

from millrace.pipelines.cli import dispatch
from millrace.pipelines.dataflow.flex_template import main

if __name__ == "__main__":
    main(dispatch)

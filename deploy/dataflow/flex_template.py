"""The file that the Flex Template's launcher runs; the program is pipelines/flex_template.py."""

from millrace.pipelines.flex_template import main

if __name__ == "__main__":
    main()

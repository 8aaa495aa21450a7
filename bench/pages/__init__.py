"""``python -m bench.pages --check``: the figures in the pages' tables agree with the records.

A comment directly above a table says, in TOML, how its cells follow from records:

    <!-- table
    record = "bench/results/sweep-mnist1d-recipes.jsonl"
    rows = ["arm"]
    reference = "fp32"
    [columns]
    "test accuracy (%)" = '{figure("test_accuracy", 2, 100)}'
    "p after Holm" = '{p("test_accuracy")}'
    -->

- record: a file of JSON lines. records: several sets, by the names that the columns call them, each
  with a record or a where of its own.
- where: an expression of a record's fields, and of ``record`` itself; only records for which it is
  true are read. let: more fields, each such an expression.
- rows: the fields that the first cells of a row show. names: the value that a cell stands for if
  the cell has another text; a list stands for several values.
- reference: the arm that the others are compared with. Every arm then needs its row, since p values
  are corrected over all of them. Records that agree in the first of `rows` are the seeds of an arm.
- columns: the text of a cell, by the column's heading, as an f-string of the fields of the row's
  newest record and of the methods of `bench.pages.records.Row`. A cell whose field is missing or
  null in its record is empty.
- cells: the same for the cells of single rows, by the first cell. given: the headings of columns
  with decimals that are in no record. Other columns are words.

Expressions are Python of this repository, like the examples in its pages. ``--write`` renews the
cells that differ. A table that has decimals and no comment is an error, but for those of
`bench.pages.tables.NO_RECORD`.
"""

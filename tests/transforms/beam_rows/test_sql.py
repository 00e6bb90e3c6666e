"""Rows of Extract go into Beam SQL, which is Java's, as they are, and rows of what is selected come back.

Java's SDK 2.70 is the last one whose Beam SQL Maven Central's mirrors have. It has no type yet for dates from
elsewhere: no query here has them.
"""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.external import JavaExternalTransform

from millrace import Extract, ModelConfig
from tests.servers.sql import sql_service
from tests.transforms.purchases import Purchase, PurchasesClient
from tests.transforms.running import check, pipeline
from tests.transforms.typed.plain import plain

pytestmark = [pytest.mark.runners, pytest.mark.timeout(1800)]

MODEL = ModelConfig(model="any", max_num_seqs=4)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with sql_service(tmp_path_factory.mktemp("sql")) as address:
        yield address


def queried(running: beam.Pipeline, query: str, service: str, *, details: bool = False) -> Any:
    """What Beam's own SqlTransform does, without the one jar that it fetches."""
    sql = JavaExternalTransform("org.apache.beam.sdk.extensions.sql.SqlTransform", service).query(query)
    documents = running | beam.Create([{"id": str(at), "prompt": f"{at}", "shop": at} for at in range(3)])
    rows = documents | Extract(Purchase, MODEL, details=details, open_client=PurchasesClient)
    return rows | sql | beam.Map(plain)


def is_(expected: list[dict[str, Any]]) -> Any:
    return lambda found: sorted(found, key=repr) == sorted(expected, key=repr)


def test_columns_of_all_types_are_selected_and_come_back(service: str) -> None:
    query = """
        SELECT `number`, total, currency, paid, weight, pieces, PCOLLECTION.city.name AS city
        FROM PCOLLECTION WHERE NOT paid AND total > 1
    """
    with pipeline() as running:
        check(
            queried(running, query, service),
            is_(
                [
                    {
                        "number": "A-2",
                        "total": Decimal("123456789012345678.123456789"),
                        "currency": "USD",
                        "paid": False,
                        "weight": 1e-7,
                        "pieces": 10**18 - 1,
                        "city": "Lima",
                    }
                ]
            ),
        )


def test_rows_are_grouped_and_decimals_summed(service: str) -> None:
    query = """
        SELECT currency, SUM(total) AS total, COUNT(*) AS purchases
        FROM PCOLLECTION WHERE pieces < 10 GROUP BY currency
    """
    expected = {"currency": "EUR", "total": Decimal("10.00"), "purchases": 2}
    with pipeline() as running:
        check(queried(running, query, service), is_([expected]))


def test_what_is_known_of_a_row_is_asked_about_too(service: str) -> None:
    query = "SELECT id, PCOLLECTION.`value`.`number` AS `number`, columns, confidence FROM PCOLLECTION WHERE id = '2'"

    def holds(found: list[dict[str, Any]]) -> bool:
        (row,) = found
        return (row["number"], json.loads(row["columns"]), row["confidence"]) == ("A-3", {"shop": 2}, -0.5)

    with pipeline() as running:
        check(queried(running, query, service, details=True), holds)

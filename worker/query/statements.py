"""What a user types -> statements that only read, and DuckDB's errors in the words of a lake."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, TypeVar

import duckdb

from pcaplake.common.errors import Fatal, Retryable, WrongUsage
from pcaplake.common.plain_text import describe_library_error

if TYPE_CHECKING:
    from .connection import LakeDatabase

_READ: Final = ("SELECT", "EXPLAIN")
_PREPARE: Final = ("SET", "VARIABLE_SET")
_KIND: Final = re.compile(r"^(Binder|Catalog|Parser|Conversion|Invalid Input|IO|Out of Range|HTTP) Error: ")
_TABLE_TWICE: Final = re.compile(r'"(\w+)\.\1"')  # each table is in a catalog of its own name
_WRONG_SQL: Final = (duckdb.ProgrammingError, duckdb.DataError, duckdb.NotSupportedError)
_PROGRESS_SECONDS: Final = 0.2
T = TypeVar("T")


def read_statements(database: LakeDatabase, text: str) -> list[str]:
    """The statements of a text. Raises WrongUsage for SQL that cannot be read, and for a statement that writes."""
    with explained_errors():
        statements = database.connection.extract_statements(text)
    for statement in statements:
        kind = statement.type.name
        if statement.query.strip() and kind not in (*_READ, *_PREPARE):  # PIVOT creates what has no text
            raise WrongUsage(
                f"{kind.replace('_', ' ')} is no query, and a lake is only read here: use SELECT; --parquet FILE, --csv and "
                "--json write its result"
            )
    texts = [statement.query.strip().rstrip(";") for statement in statements]
    return texts if all(texts) else [text.strip().rstrip(";")]


@contextlib.contextmanager
def explained_errors() -> Iterator[None]:
    """Raises WrongUsage for wrong SQL, KeyboardInterrupt for an interrupted query, and Retryable if the lake cannot be read."""
    try:
        yield
    except RuntimeError as error:
        if "interrupted" not in str(error):
            raise
        raise KeyboardInterrupt from error
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    except _WRONG_SQL as error:
        raise WrongUsage(_plain(error)) from error
    except duckdb.OutOfMemoryException as error:
        raise Fatal(f"the query needs more memory than there is: {_plain(error)}") from error
    except duckdb.Error as error:
        raise Retryable(f"the query stopped: {_plain(error)}") from error


def _plain(error: BaseException) -> str:
    """On one line, without the place in the statement, which DuckDB draws below its error."""
    stated = describe_library_error(error).split("\n\n")[0].replace("\n", " ")
    return _TABLE_TWICE.sub(r"\1", _KIND.sub("", stated))


def run_query(connection: duckdb.DuckDBPyConnection, work: Callable[[], T], report: Callable[[float], None]) -> T:
    """The result of `work`, which runs queries on the connection; `report` gets the share that is done, from 0 to 1.

    The work has a thread of its own, because DuckDB does not see Ctrl-C in all that it does. Raises as `explained_errors`.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="query") as thread, explained_errors():
        result = thread.submit(work)
        try:
            while not wait([result], timeout=_PROGRESS_SECONDS).done:
                if (percent := connection.query_progress()) >= 0:
                    report(percent / 100)
        except KeyboardInterrupt:
            while not wait([result], timeout=_PROGRESS_SECONDS).done:  # the first may come before a query has begun
                connection.interrupt()
            raise
        return result.result()

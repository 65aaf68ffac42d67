"""What the scheduler makes for every row has all fields of its class, however it was made."""

from engines import ride
from virtual import request


def test_rows_draws_and_outputs_are_whole() -> None:
    one = ride()
    one.submit(request("a", [1, 2, 3], 3))
    one.run()
    works = [work for step in one.steps for work in step.plan.work]
    records = [*works, *(draw for work in works for draw in work.draws), *(out for step in one.steps for out in step.outputs)]
    assert len({type(record) for record in records}) == 3
    for record in records:
        assert len(record) == len(record._fields)
        assert type(record)(*record) == record

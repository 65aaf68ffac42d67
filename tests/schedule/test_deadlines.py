"""What is learned of first tokens; what becomes of it in an engine is in `test_orders`."""

import pytest
from engines import ride
from virtual import request

from chairlift.engine.core import EngineCore
from chairlift.schedule.deadlines import Onset
from chairlift.schedule.orders import Ranked


def onset(core: EngineCore) -> Onset:
    order = core.scheduler._policy.order
    assert isinstance(order, Ranked)
    return next(learner for learner in order._learners if isinstance(learner, Onset))


def test_answers_of_one_token_teach_when_a_first_token_comes():
    engine = ride(scheduling_policy="deadline", max_num_seqs=1)
    engine.submit(*(request(str(number), range(number, number + 9), 1, ttft_target_s=50.0) for number in range(10)))
    engine.run()
    assert onset(engine.core)._all.known == 10
    assert onset(engine.core).seconds(9, 50.0) == pytest.approx(1.0, rel=1e-3)


def test_who_was_preempted_before_his_first_token_teaches_nothing():
    engine = ride(scheduling_policy="deadline", max_num_seqs=1)
    engine.submit(request("long", range(40), 2, priority=1000))
    engine.step()
    engine.submit(request("urgent", range(5), 2, arrival=1.0))
    engine.run()
    assert engine.preemptions == 1
    assert onset(engine.core)._all.known == 1
    assert not onset(engine.core)._begun

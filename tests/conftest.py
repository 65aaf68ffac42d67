"""Hypothesis profiles: `ci` (the default) is deterministic and bounded, `quick` skips shrinking while hunting a fault."""

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", deadline=None, phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

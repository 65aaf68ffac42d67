"""The engine in virtual time: the very core that serves, over an executor that prices plans and computes nothing."""

"""The errors that a caller can cause. Every message is one line that says what was wrong and, where there is one, the limit."""


class ChairliftError(Exception):
    """Base of all errors that are meant for the user: one line, no traceback."""


class ConfigError(ChairliftError):
    """A combination of settings that cannot work."""


class ModelError(ChairliftError):
    """A model that cannot be used: unsupported, broken, cut, or not to be found."""


class TemplateError(ChairliftError):
    """A chat template that refused the messages, or that could not be rendered."""


class TraceError(ChairliftError):
    """A recorded trace of requests that cannot be read: it names the file, the line and what is wrong there."""


class Refused(ChairliftError):
    """A request that was not accepted. It has left no trace in the engine."""


class NeverFits(Refused):
    """The request is longer than the context or than the whole KV pool: it could never run."""


class QueueFull(Refused):
    """Too much is waiting already.

    `limit` names the setting that refused it; `retry_after_s` estimates when trying again makes sense.
    """

    def __init__(self, message: str, *, limit: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.limit = limit
        self.retry_after_s = retry_after_s


class Unavailable(Refused):
    """The engine takes no requests: it is shutting down, or it has failed."""


class ExecutorLost(ChairliftError):
    """The executor is gone for good: no plan will ever be computed again, whoever is to blame for that."""


class NothingAllowed(ChairliftError):
    """A draw from which every token is excluded, by a mask, a ban, or both together."""


class RecordError(ChairliftError):
    """A record that cannot be replayed: not one of ours, of another version, or broken."""

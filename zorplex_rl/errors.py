"""What can go wrong, in one sentence: what was wrong, what is expected, what to do."""


class ZorplexError(Exception):
    """A failure that is expected; the command line prints its message and nothing else."""


class ConfigError(ZorplexError, ValueError):
    """A setting that cannot work."""


class PolicyError(ConfigError):
    """A policy that cannot be used."""


class TaskError(ConfigError):
    """A user's task (``--task FILE:CLASS``) that cannot be used, or failed; it says where."""


class SiteError(ZorplexError):
    """A notebook that cannot be published: a cell of it failed, or did not run."""


class TrainingDiverged(ZorplexError):
    """A run's loss, gradient or weights are no finite numbers; the message says which, and when."""


class StorageError(ZorplexError):
    """A run's folder that can no longer be written: the disk is full, or gone."""


class CheckpointError(ZorplexError):
    """A checkpoint that is not what was written. The message says what is wrong with it."""


class HostError(ZorplexError):
    """A host that is silent, has another package version, or is lost; or no host is left."""


class WeightPullError(ZorplexError):
    """A pull has failed. The weights in use are unchanged."""

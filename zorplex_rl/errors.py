"""The errors of the package. Their messages are one sentence: what was wrong, what is expected, what to do."""


class ZorplexError(Exception):
    """A failure that is expected; the command line prints its message and nothing else."""


class ConfigError(ZorplexError, ValueError):
    """A setting cannot work."""


class PolicyError(ConfigError):
    """A policy cannot be used."""


class TaskError(ConfigError):
    """A user's task (``--task FILE:CLASS``) cannot be used, or failed; the message says where."""


class SiteError(ZorplexError):
    """A notebook cannot be published: a cell of it failed, or did not run."""


class TrainingDiverged(ZorplexError):
    """Loss, gradients or weights became NaN or infinite; the message says which, and when."""


class StorageError(ZorplexError):
    """The folder of a run cannot be written any more: the disk is full, or gone."""


class CheckpointError(ZorplexError):
    """A checkpoint is damaged; the message says how."""


class HostError(ZorplexError):
    """A host is silent, has another version of the package, or is lost; or no host is left."""


class WeightPullError(ZorplexError):
    """A pull has failed. The model is unchanged."""

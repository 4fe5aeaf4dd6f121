"""Exceptions named after facts. Each message says what was asked, what was found and what to do."""

import errno


class SlimformerError(Exception):
    """A fact the user can act on; the command line prints it in one line and exits with 2."""


class WrongArgument(SlimformerError, ValueError):
    """An argument is of the wrong kind, or outside of what it may be."""


class FileRefused(SlimformerError, OSError):
    """A file is no regular one, or larger than such a file can be, so it is not read; readers take it for any other
    error of the disk."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(errno.EINVAL, why, str(path))

    def __str__(self) -> str:
        return f"{self.filename} is not read: {self.strerror}"


class UnknownArchitecture(SlimformerError):
    """The model is of a type no family describes."""


class UnknownType(UnknownArchitecture):
    """The package has no family for models of this type; one may be discovered."""


class ModelNotFound(SlimformerError):
    """The folder, hub id or demo package is not there, or holds no model."""


class ModelBroken(SlimformerError):
    """The weights cannot be used: NaN or infinite values, unreadable files."""


class UnknownMethod(SlimformerError):
    """There is no decomposition or allocation of that name."""


class UnknownRecipe(SlimformerError):
    """There is no recipe of that name, or the recipe file says something that is not understood."""


class BudgetOutOfReach(SlimformerError):
    """The budget is not a fraction, or the chosen format cannot go that low."""


class AlreadyRounded(SlimformerError):
    """The weights are in fewer bits already, and what is asked for would undo that."""


class PlanDoesNotFit(SlimformerError):
    """The plan, or the statistics, were made for another model."""


class NotEnoughMemory(SlimformerError):
    """The work would take more memory than was allowed."""


class WorkTorn(SlimformerError):
    """What an earlier run left to go on with cannot be read."""


class NotLossless(SlimformerError):
    """Rewrites that change nothing on paper changed the outputs by more than rounding."""


class RankTooHigh(SlimformerError):
    """More directions were asked for than the calibration data span."""


class TooManyHarmonics(SlimformerError):
    """Explicit spherical harmonics were asked for in a dimension where their number is astronomical."""


class ScaleMatters(SlimformerError):
    """A map up to scale was asked for where the scale of what is written is not forgotten."""


class NotFinite(SlimformerError):
    """NaN or infinite values appeared in activations."""


class OutputExists(SlimformerError):
    """Something is already at the place to write to."""


class FileChanged(SlimformerError):
    """A file of a result is not what was written there."""


class CannotWrite(SlimformerError):
    """The disk is full, or the place is not writable."""


class SaveFailed(SlimformerError):
    """The saved checkpoint did not reload to the same outputs, so it was not put in place."""


class DataNotFound(SlimformerError):
    """The file, folder or named data set is not there, or the hub cannot be reached."""


class DataEmpty(SlimformerError):
    """The data were found, and hold no text or no images."""


class DataUnreadable(SlimformerError):
    """The data are binary, not UTF-8, or not what their suffix promises."""


class ColumnNotFound(SlimformerError):
    """The table has no column of that name, or none that is known to hold text."""


class TooFewTokens(SlimformerError):
    """The data are real, and there is too little of them."""


class CannotGroup(SlimformerError, ValueError):
    """Attention of this model cannot run over groups of keys, nothing would be gained by it, or it does so already and
    what is asked for cannot follow."""


class TooFewExamples(SlimformerError):
    """There is one example or none, and an interval needs two."""


class SequenceTooLong(SlimformerError):
    """More positions were asked for than the model has, or others than an image has."""


class UnknownTask(SlimformerError):
    """There is no named data set of that name."""


class ReportNotFound(SlimformerError):
    """There is no report.json at the place, or none that can be read."""


class TrackerNotFound(SlimformerError):
    """There is no tracker of that name, or its package is not installed."""


class RowsUnusable(SlimformerError, ValueError):
    """Rows, targets or weights to fit on are NaN, of the wrong shape, or do not fit each other."""


class CannotForget(SlimformerError, ValueError):
    """Rows to forget were never seen: taking them away would leave less than nothing."""


class HeadDoesNotFit(SlimformerError, ValueError):
    """No stock class can hold this head on this model, or the head was fitted on other features."""


class ProjectionDoesNotFit(SlimformerError, ValueError):
    """A projection along the sequence was asked for that cannot be: an unknown kind, sharing that needs one k, a block
    that does not hold whole segments."""


class BadExperiment(SlimformerError):
    """The file of an experiment says something that is not understood, or that cannot be had."""


class ExperimentChanged(SlimformerError):
    """Runs at the place were made with other settings."""


class RunFailed(SlimformerError):
    """A training ended before its time."""


class CannotExport(SlimformerError):
    """The format cannot say this model, or a package it needs is not installed."""


class ExportFailed(SlimformerError):
    """The exported file does not give the outputs of the model, so it was not put in place."""


class CannotPush(SlimformerError):
    """The folder is no finished checkpoint, or the hub does not take it."""


class ExtraNotInstalled(SlimformerError):
    """A package of an optional extra is needed and is not there."""


class ProcessesDisagree(SlimformerError):
    """Processes that work together were given different models or data."""


class ProcessLost(SlimformerError):
    """One of several processes that work together has ended."""

"""The way from a folder or a hub id to a model, and its description."""

from slimformer.models.architecture import Architecture as Architecture
from slimformer.models.architecture import Site as Site
from slimformer.models.architecture import describe as describe
from slimformer.models.families import FAMILIES as FAMILIES
from slimformer.models.families import family_of as family_of
from slimformer.models.family import Family as Family

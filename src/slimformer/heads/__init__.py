"""Heads and maps solved in closed form from moments: classifiers, regressions, language-model heads, matching."""

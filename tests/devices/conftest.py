"""These checks run in a process of their own (see tests/test_devices.py), which has the device `elsewhere`."""

import os

from devices.backend import register

register(double=os.environ["ELSEWHERE_DOUBLE"] == "1")

"""What all tests share: how long a machine takes is no failure, and what a shell leaves to its children changes nothing."""

import os
import signal
import time

from hypothesis import HealthCheck, settings

from lpc_ray.home import cache, settle

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_SET = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "COLUMNS": "80"}
_UNSET = ("LANGUAGE", "PYTHONIOENCODING", "FORCE_COLOR", "NO_COLOR", "RAY_ADDRESS", "MLFLOW_TRACKING_URI")
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def pytest_configure():
    """Set the signals, locale, time zone, umask and home that tests assume, before any of them is imported, here and for the
    programs they start: `nohup`, a script's `&`, cron and containers leave others.
    """
    for number in signal.valid_signals() - set(_IGNORED_BY_PYTHON):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    os.environ.update(_SET)
    for name in _UNSET:
        os.environ.pop(name, None)
    time.tzset()
    settle()
    os.environ["LPC_CACHE"] = str(cache())  # also in a substitute: what tests prepare need not stay

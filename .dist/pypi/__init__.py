"""Finds the program `ahp-sidecar`, which this package installs beside Python's own programs."""
import os
import shutil
import sysconfig


def program():
    """Returns the path of the program, or what AHP_SIDECAR_PATH names.

    Raises FileNotFoundError if there is none.
    """
    chosen = os.environ.get("AHP_SIDECAR_PATH")
    if chosen:
        if not os.path.exists(chosen):
            raise FileNotFoundError(f"AHP_SIDECAR_PATH names `{chosen}`, which does not exist")
        return chosen
    schemes = [sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")]
    folders = [sysconfig.get_path("scripts", scheme) for scheme in schemes]
    # `pip install --target` puts programs beside the packages.
    folders.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin"))
    found = shutil.which("ahp-sidecar", path=os.pathsep.join(folders))
    if not found:
        raise FileNotFoundError(f"`ahp-sidecar` is in none of {', '.join(folders)}: install the package again")
    return found

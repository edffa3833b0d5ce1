"""Object stores and local disks behind one port, with conditional writes that are checked."""

from . import local_store as local_store  # both register the URI schemes that they open
from . import object_store as object_store

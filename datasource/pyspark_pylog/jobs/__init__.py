"""The programs that the files in the folder `jobs` start, each under the name of its file, and what they share.

The driver opens the log, plans, and commits; tasks do the work.  `job_support.py` has the arguments, the tasks, and how
a job ends.  `admin_file.py` and `admin_changes.py` are parts of `admin.py`; `mirror_job.py`, `topic_mirror.py` and
`typed_mirror.py` are shared by the mirrors.
"""

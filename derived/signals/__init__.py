"""`pcaplake signals`: decodes the frames of a lake to physical values on one machine, without Spark.

    state.py    which program decodes the signals of the lake, and the definitions of its databases
    frames.py   the new files of each table of frames, as `can_frames`, and their rows
    decode.py   files of frames -> files of signals, in threads
    run.py      a run: take over, decode again what changed, follow; every commit belongs to the newest run

docs/adr/0043-signals-follow-the-rows.md says what takes the place of ledger and committer.
"""

"""Bytes and places: the only part that talks to disks and object stores.

In the order of imports:

- ``clock``, ``chance``: what time it is, and random bytes; nothing else of the package asks for them
- ``port``: what the engine asks of a place, and the rules of what may be asked; ``settings``: tries, time-outs
- ``forked_children``: what a child of ``os.fork`` makes anew, or leaves alone
- ``disk``, ``scratch``, ``local``: system calls, unfinished files, and objects as files; ``memory``: the reference
- ``secrets``: the address of a place, and what of it no pickle and no text shows
- ``answers``: which answers over a network are believed; ``failures``: what is tried again, and what is told
- ``fsspec``, ``s3``, ``http``: one class for each way to reach a place; ``open`` chooses among them
- ``external``: files behind virtual chunks; ``source_files``: what an ingest reads; ``table_files``: what queries
  read
"""

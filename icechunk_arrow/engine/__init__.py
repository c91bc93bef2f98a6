"""What happens to an open repository: reading it, staging changes over a snapshot, and committing them.

A map, in the order in which one thing needs another:

- *Reading.* ``files`` reads every kind of file, through ``cache``; ``manifest_file`` holds one manifest for
  look-ups, ``lookup`` finds a chunk's reference in many, ``listing`` streams all of them, ``keyspace`` says what
  a Zarr key is, ``chunk_bytes`` and ``joint_reads`` bring bytes, ``virtual`` those of other people's files, and
  ``preload`` what will be wanted soon. ``context`` is what all of these share.
- *Catalogs.* ``catalog``, ``sequences``, ``state_catalog``: which snapshot a branch or tag names, and the one
  create that decides. ``opening`` and ``config`` bring a repository into being and open it; ``small_files`` are
  written in one way.
- *Staging.* ``session`` stages chunks in a ``staging``: per array a list of ``segments``, newer over older, of
  which ``merging`` makes one. Many references come through ``references`` (checks), ``encoded`` (bytes),
  ``bulk`` and ``sorting`` (order and memory); ``payloads`` writes chunk files, ``manifest_writer`` manifests.
- *Committing.* ``changes`` puts what is staged into columns, ``plan`` decides from them what a commit is,
  ``commit`` carries it out. ``branch_session`` does that for a session, on top of what others did (``Rebase``),
  ``forks`` for work done elsewhere, ``rewriting`` and ``compaction`` for housekeeping.
- *History.* ``history``: what was, which of it a caller means, and what changed.

How one chunk is committed: ``BaseSession.write_chunk`` puts it among the single writes of its array;
``BranchSession.commit`` merges segments, puts them into columns (``in_columns``), plans (``plan_commit``),
writes the plan's manifests and the files that name them (``write``), and creates the branch's next entry
(``publish``).
"""

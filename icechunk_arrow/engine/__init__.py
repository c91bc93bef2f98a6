"""What happens to an open repository: reading it, staging changes over a snapshot, and committing them.

A map, in the order in which one thing needs another:

- *Files.* ``cache`` keeps what was read, ``manifest_file`` holds one manifest for look-ups, ``sequences`` finds the
  newest of numbered files; ``files`` reads every kind of file through these. ``small_files`` are all written in one
  way.
- *Catalogs.* ``catalog``, with branches as sequences of files: which snapshot a branch or tag names, and the one
  create that decides. ``config`` are the settings in force, ``virtual`` says which foreign files may be read.
  ``context`` is what all of the following share. ``history``: what was, which of it a caller means, and what
  changed. ``state_catalog`` is the other catalog, ``opening`` makes repositories and opens them.
- *Bytes of chunks.* ``lookup`` finds a chunk's reference in many manifests, ``chunk_bytes`` reads and checks
  chunks, ``payloads`` writes them into chunk files, ``preload`` reads manifests that will be wanted soon.
- *Staging.* Per array a list of ``segments``, newer over older; all of them and the nodes are a ``staging``.
  ``changes`` puts what is staged into columns, ``listing`` streams what there is.
- *Committing.* ``plan`` decides what a commit is, ``manifest_writer`` writes manifests in the background,
  ``commit`` carries plans out. ``merging`` makes one segment of many before.
- *Many references at once.* ``references`` checks what a caller gives, ``bulk`` and ``sorting`` keep order and
  memory.
- *Sessions.* ``session`` stages chunks over a snapshot, ``encoded`` many whose bytes are at hand;
  ``branch_session`` commits them, on top of what others did (``Rebase``). ``forks`` is work done elsewhere for a
  session, ``rewriting`` and ``compaction`` are housekeeping.
- *For zarr.* ``keyspace`` says what a Zarr key is, ``joint_reads`` answers many at a time.
- *For other implementations.* ``published`` writes the schemas and the tables of settings.

How one chunk is committed: ``BaseSession.write_chunk`` puts it among the single writes of its array;
``BranchSession.commit`` merges segments, puts them into columns (``in_columns``), plans (``plan_commit``),
writes the plan's manifests and the files that name them (``write``), and creates the branch's next entry
(``publish``).
"""

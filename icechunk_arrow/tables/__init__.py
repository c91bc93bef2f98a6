"""The tables of a repository: what each column is, the small ones as Arrow, and all of them as SQL.

In the order in which they build on each other:

``schemas``
    Names, columns and types of all tables, and of what queries join.
``columns``, ``nodes``, ``history``, ``metadata``
    The tables that need no chunk manifest to be read, as Arrow; ``columns`` is what several of them need.
``scans``, ``node_changes``
    Decisions: which manifests are read together; how two snapshots differ.
``sql``, ``queries``
    The one generator of SQL: how an engine spells it, how a row of a manifest becomes a row of ``chunks``, and
    the query for each table. The texts are in ``sql/``; ``duckdb`` and ``spark`` run them or write scripts.
``selection``, ``reading``, ``inspections``, ``inspecting``, ``attaching``
    What callers ask for: a snapshot, a table, an inspection, a name by which tables are attached.
"""

"""The tables of a repository: what each column is, and the small ones as Arrow.

Owns the schemas, and the facts that need no chunk manifest to be read. Tables over chunks are SQL
(``sql/tables/``), the same text in every engine.
"""

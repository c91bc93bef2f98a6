"""What holds for all four Parquet file kinds: round trip, determinism, identification, seal."""

from __future__ import annotations

import hashlib
import io
import struct
from typing import Any

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icechunk_arrow.errors import CorruptFileError, UnsupportedFormatError
from icechunk_arrow.formats import envelope, manifest
from tests.formats.kinds import ID, KINDS, Kind
from tests.formats.strategies import rows_and_groups

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.word)
few = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def footer_length(data: bytes) -> int:
    """The length of the Parquet footer."""
    return int(struct.unpack("<I", data[-8:-4])[0])


def seal_again(data: bytes, footer: bytes, identifier: str = ID) -> bytes:
    """The file with another footer, sealed as a writer would."""
    at = len(data) - 8 - footer_length(data)
    count = struct.unpack_from("<I", data, at - 68 + 28)[0]
    entries = data[at - 68 - 12 * count : at - 68]
    fixed = struct.pack("<8s20sII", b"ICASEAL\x01", identifier.encode(), count, len(footer))
    end = footer + struct.pack("<I", len(footer)) + b"PAR1"
    digest = hashlib.sha256(entries + fixed + end).digest()
    return data[: at - 68 - 12 * count] + entries + fixed + digest + end


@every_kind
@few
@given(data=st.data())
def test_decoding_gives_what_was_encoded(kind: Kind, data: st.DataObject) -> None:
    """``decode(encode(x)) == x`` for every kind."""
    value = data.draw(kind.values)
    encoded, identifier = kind.encode(value)

    assert kind.same(value, kind.decode(encoded, identifier))


@every_kind
@few
@given(data=st.data())
def test_encoding_is_deterministic(kind: Kind, data: st.DataObject) -> None:
    """The same value gives the same bytes."""
    value = data.draw(kind.values)

    assert kind.encode(value) == kind.encode(value)


def test_the_order_of_chunks_of_arrow_memory_does_not_show() -> None:
    """A table in pieces is written like the same table in one piece."""
    table = rows_and_groups(40_000)
    pieces = pa.concat_tables([table.slice(0, 7), table.slice(7, 20_000), table.slice(20_007)])

    assert manifest.encode(pieces, ID) == manifest.encode(table, ID)


@every_kind
@few
@given(data=st.data())
def test_every_footer_carries_the_identification(kind: Kind, data: st.DataObject) -> None:
    """27 header bytes as documented, verbatim, and the same facts as text."""
    encoded, _ = kind.encode(data.draw(kind.values))
    found = pq.read_metadata(io.BytesIO(encoded)).metadata
    magic = bytes.fromhex("4943 45f0 9fa7 8a43 4855 4e4b")
    header = found[b"icechunk.header"]

    assert magic.decode() == "ICE\N{ICE CUBE}CHUNK"
    assert len(header) == 27
    assert header == magic + b"ica-0.1.0   " + bytes([1, kind.number, 1])
    assert {key: found[key] for key in found if key.startswith(b"icechunk.")}.items() >= {
        b"icechunk.magic": b"494345f09fa78a4348554e4b",
        b"icechunk.implementation": b"ica-0.1.0",
        b"icechunk.spec-version": b"1",
        b"icechunk.file-type": kind.word.encode(),
        b"icechunk.compression": b"zstd",
    }.items()


@every_kind
def test_object_metadata_is_ascii(kind: Kind) -> None:
    """What object stores get beside a file can stand in an HTTP header."""
    words = envelope.header_metadata(kind.kind)

    assert words["icechunk.file-type"] == kind.word
    assert all((name + value).isascii() for name, value in words.items())


@every_kind
@few
@given(data=st.data())
def test_the_seal_is_laid_out_as_specified(kind: Kind, data: st.DataObject) -> None:
    """Entries, magic, id, counts and a SHA-256 stand before the footer, byte by byte."""
    encoded, identifier = kind.encode(data.draw(kind.values))
    length = footer_length(encoded)
    at = len(encoded) - 8 - length
    magic, name, count, stated, digest = struct.unpack("<8s20sII32s", encoded[at - 68 : at])
    entries = encoded[at - 68 - 12 * count : at - 68]

    assert encoded[:4] == encoded[-4:] == b"PAR1"
    assert (magic, name, stated) == (b"ICASEAL\x01", identifier.encode(), length)
    assert digest == hashlib.sha256(entries + encoded[at - 68 : at - 32] + encoded[at:]).digest()
    metadata = pq.read_metadata(io.BytesIO(encoded))
    assert metadata.num_row_groups == count
    start = 4
    for group, (end, crc) in enumerate(struct.iter_unpack("<QI", entries)):
        assert google_crc32c.value(encoded[start:end]) == crc
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            first = chunk.dictionary_page_offset or chunk.data_page_offset
            assert start <= first
            assert first + chunk.total_compressed_size <= end
        start = end
    assert start <= at - 68 - 12 * count


@every_kind
@few
@given(data=st.data())
def test_any_parquet_reader_reads_the_rows(kind: Kind, data: st.DataObject) -> None:
    """The seal is a gap to others: plain pyarrow reads the same rows and passes all page checksums."""
    encoded, identifier = kind.encode(data.draw(kind.values))
    plain = pq.ParquetFile(io.BytesIO(encoded), page_checksum_verification=True)
    _, ours = envelope.read_whole(encoded, kind.kind, identifier)

    assert plain.read().equals(ours)
    assert plain.metadata.format_version == "2.6"


@every_kind
@few
@given(data=st.data())
def test_pages_carry_checksums_and_zstd(kind: Kind, data: st.DataObject) -> None:
    """A flipped bit in a page is noticed by any reader that verifies page checksums."""
    encoded, _ = kind.encode(data.draw(kind.values))
    metadata = pq.read_metadata(io.BytesIO(encoded))
    if not metadata.num_row_groups:
        return
    column = metadata.row_group(0).column(0)
    assert column.compression in {"ZSTD", "UNCOMPRESSED"}
    last = column.data_page_offset + column.total_compressed_size
    if column.dictionary_page_offset:
        last = column.dictionary_page_offset + column.total_compressed_size
    broken = bytearray(encoded)
    broken[last - 1] ^= 1

    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(io.BytesIO(broken), page_checksum_verification=True).read(columns=["id"])


def example(kind: Kind) -> tuple[bytes, str]:
    """The bytes of some file of a kind, the same at each call."""
    encoded, identifier = EXAMPLES[kind.word]
    return encoded, identifier


def _examples() -> dict[str, tuple[bytes, str]]:
    from tests.formats.examples import LOG, SNAPSHOT

    values: dict[str, Any] = {
        "snapshot": (SNAPSHOT, []),
        "manifest": rows_and_groups(20_000),
        "attributes": [(7, b'{"units":"K"}')],
        "transaction-log": LOG,
    }
    return {kind.word: kind.encode(values[kind.word]) for kind in KINDS}


EXAMPLES = _examples()


@every_kind
def test_every_bit_of_the_end_is_checked(kind: Kind) -> None:
    """No flipped bit of seal and footer gets past: each is an error that names the file."""
    encoded, identifier = example(kind)
    begin = len(encoded) - 8 - footer_length(encoded) - 68 - 12
    for place in range(begin, len(encoded), 1 if len(encoded) - begin < 4000 else 7):
        broken = bytearray(encoded)
        broken[place] ^= 1 << place % 8
        with pytest.raises(CorruptFileError) as caught:
            kind.decode(bytes(broken), identifier)
        assert f"/{identifier}.parquet" in str(caught.value)


@every_kind
def test_every_bit_of_the_rows_is_checked(kind: Kind) -> None:
    """No flipped bit of a row group gets past."""
    encoded, identifier = example(kind)
    at = len(encoded) - 8 - footer_length(encoded) - 68
    count = struct.unpack_from("<I", encoded, at + 28)[0]
    stop = struct.unpack_from("<Q", encoded, at - 12)[0]
    assert count >= 1
    for place in range(4, stop, max(1, stop // 300)):
        broken = bytearray(encoded)
        broken[place] ^= 1 << place % 8
        with pytest.raises(CorruptFileError, match="row group"):
            kind.decode(bytes(broken), identifier)


@every_kind
def test_a_cut_file_is_an_error(kind: Kind) -> None:
    """Wherever a file ends too early, the error names it."""
    encoded, identifier = example(kind)
    for length in [*range(0, len(encoded), max(1, len(encoded) // 200)), len(encoded) - 1]:
        with pytest.raises(CorruptFileError, match=f"{identifier}.parquet is damaged"):
            kind.decode(encoded[:length], identifier)


@every_kind
def test_a_file_under_another_name_is_an_error(kind: Kind) -> None:
    """Two files of a kind that changed places are found out."""
    encoded, identifier = example(kind)

    with pytest.raises(CorruptFileError, match=f"it is the file {identifier}"):
        kind.decode(encoded, "00000000000000000000")


@every_kind
def test_a_file_of_another_kind_is_an_error(kind: Kind) -> None:
    """A sound file in the wrong folder is not taken for what belongs there."""
    for other in KINDS:
        if other is not kind:
            encoded, identifier = example(other)
            with pytest.raises(CorruptFileError, match=f"is a {other.word} file where a"):
                kind.decode(encoded, identifier)


@every_kind
@pytest.mark.parametrize("version", [0, 2, 255 & 0x7F])
def test_a_newer_version_is_refused_as_newer(kind: Kind, version: int) -> None:
    """A file of a later version is not "damaged", and the error says who wrote it."""
    encoded, identifier = example(kind)
    footer = encoded[-8 - footer_length(encoded) : -8]
    header = b"ica-0.1.0   \x01"
    assert footer.count(header) == 1
    newer = footer.replace(header, b"other-9     " + bytes([version]))

    with pytest.raises(UnsupportedFormatError, match=f"version {version} .*'other-9'"):
        kind.decode(seal_again(encoded, newer, identifier), identifier)


@every_kind
def test_a_plain_parquet_file_is_refused(kind: Kind) -> None:
    """A file that somebody wrote with another program has no seal, and is not believed."""
    encoded, identifier = example(kind)
    sink = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(encoded)), sink)

    with pytest.raises(CorruptFileError, match="damaged"):
        kind.decode(sink.getvalue(), identifier)


def test_a_seal_with_wrong_places_is_refused() -> None:
    """Row groups that would overlap or leave the file are refused before anything is fetched."""
    encoded, identifier = EXAMPLES["manifest"]
    length = footer_length(encoded)
    at = len(encoded) - 8 - length - 68
    footer = encoded[-8 - length : -8]
    for ends in [(1 << 60, 1 << 61), (5, 5), (3, 900)]:
        entries = b"".join(struct.pack("<QI", end, 0) for end in ends)
        moved = encoded[: at - 24] + entries + encoded[at:]
        with pytest.raises(CorruptFileError, match="one after the other"):
            envelope.open_seal(
                seal_again(moved, footer, identifier), len(encoded), manifest.KIND, identifier
            )


def test_how_much_of_the_end_is_needed() -> None:
    """From a first look at the end, a reader learns how much of it to fetch."""
    encoded, identifier = EXAMPLES["manifest"]
    length = footer_length(encoded)
    key = f"i/{identifier}.parquet"

    assert envelope.seal_needs(encoded[-8:], len(encoded), key) == 8 + length + 68
    assert envelope.seal_needs(encoded, len(encoded), key) == 8 + length + 68 + 2 * 12
    needs = envelope.seal_needs(encoded, len(encoded), key)
    opened = envelope.open_seal(encoded[-needs:], len(encoded), manifest.KIND, identifier)
    assert opened.row_group_count == 2
    assert opened.byte_range(0, 1)[0] == 4
    assert opened.byte_range(1, 1)[0] == opened.byte_range(0, 0)[1]

import gzip

import numpy as np
import pytest

from dsokr import spectra
from dsokr.errors import InputError
from dsokr.spectra import Spectrum, bins, differences, find_mass, parse, pool, read

MGF = """# made for a test
BEGIN IONS
TITLE=ethanol
PEPMASS=47.05 1200.5
CHARGE=1+
29.04 600 1+
47.05 1000
END IONS

BEGIN IONS
TITLE=no precursor = none
31.02 10
END IONS
"""
MSP = """Name: ethanol
PrecursorMZ: 47.05
Comments: "a: b"
Num Peaks: 3
29.04 600 "C2H5+; 1 ppm"
31.02\t20; 47.05 1000;

NAME: ethylamine
Num peaks: 1
30.03 7
"""


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def peaks(spectrum):
    return list(zip(spectrum.mz.tolist(), spectrum.intensity.tolist(), strict=True))


@pytest.mark.parametrize("text", ["50.2:1e2 80:400", "50.2:100;80:400", "50.2 100;80 400;", "\n50.2\t100\n80 400\n"])
def test_peaks_are_read_from_texts(text):
    assert peaks(parse(text)) == [(50.2, 100.0), (80.0, 400.0)] and parse(text, 99.5).precursor == 99.5


def test_long_texts_are_read():
    text = " ".join(f"{i}:{i + 1}" for i in range(100_000))
    assert len(parse(text)) == 100_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "A spectrum must have a peak with an intensity above 0."),
        ("50:0", "A spectrum must have a peak with an intensity above 0."),
        ("50:1 60", "A peak must be an m/z and an intensity. Got '60'."),
        ("50:1 60:2:3", "A peak must be an m/z and an intensity. Got '60 2 3'."),
        ("50 1 60 2", "A peak must be an m/z and an intensity. Got '50 1 60 2'."),
        ("50:one", "The intensity of peaks must be numbers. Got ['one']."),
        ("50:1 -3:2", "The mz of peaks must be at least 0 and finite. Got -3.0 at peak 2."),
        ("50:nan", "The intensity of peaks must be at least 0 and finite. Got nan at peak 1."),
        ("50:inf", "The intensity of peaks must be at least 0 and finite. Got inf at peak 1."),
        ("60:1 50:1", "The peaks of a spectrum must be sorted by m/z. Got 50 after 60."),
    ],
)
def test_bad_peaks_are_refused(text, message):
    with pytest.raises(InputError) as error:
        parse(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (([1.0, 2.0], [1.0]), "A spectrum has 2 m/z and 1 intensities."),
        (([[1.0]], [1.0]), "The mz of peaks must be one list of numbers. Got 2 dimensions."),
        (([1.0], [1.0], 0.0), "The m/z of a precursor must be positive and finite. Got 0.0."),
        (([1.0], [1.0], float("nan")), "The m/z of a precursor must be positive and finite. Got nan."),
    ],
)
def test_bad_spectra_are_refused(parts, message):
    with pytest.raises(InputError) as error:
        Spectrum(*parts)
    assert str(error.value) == message


def test_mgf_files_are_read(tmp_path):
    first, second = read(write(tmp_path, "a.MGF", MGF))
    assert peaks(first) == [(29.04, 600.0), (47.05, 1000.0)] and first.precursor == 47.05
    assert first.metadata == {"title": "ethanol", "pepmass": "47.05 1200.5", "charge": "1+"}
    assert second.precursor is None and second.metadata == {"title": "no precursor = none"}


def test_msp_files_are_read(tmp_path):
    first, second = read(write(tmp_path, "a.msp", MSP))
    assert peaks(first) == [(29.04, 600.0), (31.02, 20.0), (47.05, 1000.0)] and first.precursor == 47.05
    assert first.metadata["name"] == "ethanol" and first.metadata["comments"] == '"a: b"'
    assert peaks(second) == [(30.03, 7.0)] and second.precursor is None


def test_compressed_files_are_read(tmp_path):
    path = tmp_path / "a.msp.gz"
    path.write_bytes(gzip.compress(MSP.encode()))
    assert [one.metadata["name"] for one in read(path)] == ["ethanol", "ethylamine"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", "the name of a file of spectra must end in .mgf or .msp, or in these and .gz."),
        (
            "a.mgf",
            MGF.replace("600", "six"),
            "the spectrum that ends at line 8: The intensity of peaks must be numbers.",
        ),
        ("a.mgf", MGF.replace("31.02 10", "31.02"), "line 13: A peak must be an m/z and an intensity. Got '31.02'."),
        ("a.mgf", MGF.replace("=47.05 1200.5", "=heavy"), "The m/z of a precursor must be a number. Got 'heavy'."),
        ("a.mgf", MGF.rstrip().removesuffix("END IONS"), "line 12: the last spectrum has no END IONS."),
        ("a.msp", MSP.replace("Peaks: 3", "Peaks: 4"), "line 6: 4 peaks are announced and 3 are there."),
        ("a.msp", MSP.replace("30.03 7", ""), "line 9: 1 peaks are announced and 0 are there."),
    ],
)
def test_bad_files_are_refused(tmp_path, name, text, message):
    with pytest.raises(InputError) as error:
        read(write(tmp_path, name, text))
    assert str(tmp_path / name) in str(error.value) and message in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.mgf", None, "No such file or directory."),
        ("a.mgf", b"BEGIN IONS\nTITLE=\xff", "codec can't decode"),
        ("a.mgf.gz", b"BEGIN IONS", "Not a gzipped file"),
        ("a.mgf.gz", gzip.compress(MGF.encode(), mtime=0)[:40], "Compressed file ended"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name} cannot be read: .*{message}"):
        read(tmp_path / name)


def test_bins_hold_sums_by_mass_and_by_loss():
    X = bins([parse("29.0:360 29.2:640 40:10", 47.0), parse("1e4:9", 46.0)], width=0.5, heaviest=100.0)
    assert X.indices.dtype == X.indptr.dtype == np.int32  # what scikit-learn takes
    assert X.shape == (2, 2 * 201) and X.indptr[1] == X.nnz  # the only peak of the second is too heavy
    first = dict(zip(X.indices.tolist(), X.data.tolist(), strict=True))
    small = (10 / 640) ** 0.5
    assert first == pytest.approx({58: (1000 / 640) ** 0.5, 80: small, 201 + 36: (1000 / 640) ** 0.5, 201 + 14: small})


def test_a_peak_of_the_whole_molecule_has_no_loss():
    """Also if it was measured a little above the precursor."""
    X = bins([parse("47.002:5 47.3:5", 47.0)], width=0.01)
    assert X[:, [100_001]].toarray().item() == 1.0 and X[:, 100_001:].nnz == 1


def test_units_of_intensities_do_not_matter():
    X, Y = (bins([parse(text, 90.0)], 0.1).toarray() for text in ("50:1 60:4", "50:250 60:1000"))
    np.testing.assert_allclose(X, Y)


@pytest.mark.parametrize("intensity", spectra.SCALES)
def test_every_scale_keeps_the_largest_peak_and_the_order(intensity):
    X = bins([parse("50:1 60:40 70:1000")], 1.0, losses=False, intensity=intensity)
    assert X.shape == (1, 1001) and X.data[-1] == pytest.approx(1.0) and (np.diff(X.data) > 0).all()


def test_no_spectra_have_no_rows():
    assert bins([], 1.0).shape == (0, 2002)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "The spectrum at index 1 has no precursor: give its m/z, or use losses=False."),
        ({"width": 0.0}, "Bins need 0 < width <= heaviest. Got width=0.0 and heaviest=1000.0."),
        ({"intensity": "cube"}, "intensity must be one of 'sqrt', 'log', 'linear'. Got 'cube'."),
    ],
)
def test_bad_options_of_bins_are_refused(options, message):
    with pytest.raises(InputError) as error:
        bins([parse("50:1", 60.0), parse("50:1")], **options)
    assert str(error.value) == message


def test_spectra_of_a_molecule_are_averaged():
    a = Spectrum([50.0, 60.0], [10.0, 5.0], 90.0, {"name": "A", "energy": "10"})
    b, c = Spectrum([55.0], [8.0], 90.1, {"name": "A", "energy": "20"}), parse("70:3", 99.0)
    first, second = pool([a, c, b], ["A", "C", "A"])
    assert peaks(first) == [(50.0, 0.5), (55.0, 0.5), (60.0, 0.25)]
    assert first.precursor == 90.0 and first.metadata == {"name": "A"} and peaks(second) == [(70.0, 1.0)]
    with pytest.raises(InputError, match="pool needs a key for every spectrum. Got 1 keys of 2 spectra."):
        pool([a, b], ["A"])


def test_differences_are_those_of_all_pairs_of_the_largest_peaks():
    rng = np.random.default_rng(0)
    mz, intensity = np.sort(rng.uniform(50, 400, 30)), rng.integers(1, 1000, 30).astype(float)
    X = differences([parse("50:1"), Spectrum(mz, intensity)], 0.5, most=8, least=5.0, largest=200.0).toarray()
    expected, strong = np.zeros(401), np.argsort(-intensity, kind="stable")[:8]
    for i in strong:
        for j in strong:
            if 5 <= mz[j] - mz[i] <= 200:
                expected[round((mz[j] - mz[i]) / 0.5)] += (intensity[i] * intensity[j]) ** 0.5 / intensity.max()
    np.testing.assert_allclose(X, [np.zeros(401), expected])
    with pytest.raises(InputError, match="Bins need 0 < width <= largest. Got width=0 and largest=300.0."):
        differences([parse("50:1")], 0)


@pytest.mark.parametrize(
    ("adduct", "molecules", "charge", "added"),  # of the table of adducts of the Fiehn lab
    [
        ("[M+H]+", 1, 1, 1.007276),
        ("[M+Na]+", 1, 1, 22.989218),
        ("[M+K]+", 1, 1, 38.963158),
        ("[M+NH4]+", 1, 1, 18.033823),
        ("[M+ACN+H]+".replace("ACN", "C2H3N"), 1, 1, 42.033823),
        ("[M-H2O+H]+", 1, 1, -17.003289),
        ("[M+2H]2+", 1, 2, 2 * 1.007276),
        ("[M+H+Na]2+", 1, 2, 2 * 11.998247),
        ("[2M+Na]+", 2, 1, 22.989218),
        ("[M-H]-", 1, 1, -1.007276),
        ("[M+Cl]-", 1, 1, 34.969402),
        ("[M + HCOO]-", 1, 1, 44.998201),
        ("[2M-H]-", 2, 1, -1.007276),
        ("[M]+", 1, 1, -0.000549),
    ],
)
def test_masses_by_adducts(adduct, molecules, charge, added):
    mass = 180.06339
    precursor = (molecules * mass + added) / charge
    assert find_mass(precursor, adduct) == pytest.approx(mass, abs=5e-6)


@pytest.mark.parametrize(
    ("adduct", "message"),
    [
        ("M+H", "An adduct is written like [M+H]+, [M-H2O+H]+ or [2M+Na]+. Got 'M+H'."),
        ("[M+]+", "An adduct is written like"),
        ("", "An adduct is written like"),
        ("[M+Ag]+", "The adduct [M+Ag]+ has Ag. The elements known are H, Li, C,"),
    ],
)
def test_adducts_that_cannot_be_read(adduct, message):
    with pytest.raises(InputError) as error:
        find_mass(100.0, adduct)
    assert message in str(error.value)

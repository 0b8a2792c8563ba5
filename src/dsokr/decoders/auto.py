"""Which decoder suits a kernel and its outputs, when none is given."""

import warnings
from contextlib import suppress

from dsokr import compute
from dsokr.decoders.base import Candidates, Decoder
from dsokr.decoders.labels import LabelSet
from dsokr.decoders.rankings import HammingRanking, Kemeny, Lehmer
from dsokr.decoders.strings import NGram
from dsokr.decoders.vectors import Gradient
from dsokr.errors import InputError
from dsokr.kernels import Kernel
from dsokr.outputs import Form, Outputs

SEARCHED_LETTERS, SEARCHED_LABELS = 40, 2000  # longer strings and wider sets (fingerprints) are picked from a list


def choose_decoder(kernel: Kernel, outputs: Outputs, form: Form) -> Decoder:
    """The search over all outputs that the kernel has, unless these are long or wide; else the best of a list."""
    decoder = find_search(kernel, outputs, form)
    is_long = isinstance(decoder, NGram) and max(map(len, outputs)) > SEARCHED_LETTERS
    is_wide = isinstance(decoder, LabelSet) and outputs.shape[1] > SEARCHED_LABELS
    if decoder is None or is_long or is_wide:
        return Candidates()
    if compute.njit is None and not isinstance(decoder, Gradient):
        what = f'{decoder} needs numba: pip install "dsokr[graphs]". Known outputs are searched.'
        warnings.warn(what, stacklevel=4)
        return Candidates()
    return decoder


def find_search(kernel: Kernel, outputs: Outputs, form: Form) -> Decoder | None:
    """The search over all outputs that the kernel has, for label sets, rankings, strings and vectors."""
    for decoder in (LabelSet(), Kemeny(), HammingRanking(), Lehmer(), NGram(), Gradient()):
        with suppress(InputError):
            decoder.check(kernel)
            decoder.check_outputs(outputs, form)
            return decoder
    return None

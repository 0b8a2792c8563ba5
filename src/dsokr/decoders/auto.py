"""Which decoder suits a kernel and its outputs, when none is given."""

import warnings

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
    """The search over all outputs that the kernel has, for label sets, rankings, strings and vectors, or a list."""
    for decoder in (LabelSet(), Kemeny(), HammingRanking(), Lehmer(), NGram(), Gradient()):
        try:
            decoder.check(kernel)
            decoder.check_outputs(outputs, form)
        except InputError:
            continue
        if isinstance(decoder, NGram) and max(map(len, outputs)) > SEARCHED_LETTERS:
            continue
        if isinstance(decoder, LabelSet) and outputs.shape[1] > SEARCHED_LABELS:
            continue
        if compute.njit is None and not isinstance(decoder, Gradient):
            warnings.warn(
                f'{decoder} needs numba: pip install "dsokr[graphs]". Known outputs are searched.', stacklevel=4
            )
            continue
        return decoder
    return Candidates()

"""The lookup lab: cross-attention that finds facts, in any order."""

from glassformer.labs.lookup.course import BATCH_SIZE as BATCH_SIZE
from glassformer.labs.lookup.course import D_FF as D_FF
from glassformer.labs.lookup.course import D_MODEL as D_MODEL
from glassformer.labs.lookup.course import FACT_PAIRS as FACT_PAIRS
from glassformer.labs.lookup.course import FACTS_DICT as FACTS_DICT
from glassformer.labs.lookup.course import ID_TO_TOKEN as ID_TO_TOKEN
from glassformer.labs.lookup.course import LEARNING_RATE as LEARNING_RATE
from glassformer.labs.lookup.course import MAX_SEQ_LEN as MAX_SEQ_LEN
from glassformer.labs.lookup.course import NUM_EPOCHS as NUM_EPOCHS
from glassformer.labs.lookup.course import NUM_HEADS as NUM_HEADS
from glassformer.labs.lookup.course import NUM_LAYERS as NUM_LAYERS
from glassformer.labs.lookup.course import VOCAB as VOCAB
from glassformer.labs.lookup.course import VOCAB_SIZE as VOCAB_SIZE
from glassformer.labs.lookup.course import LookupDataset as LookupDataset
from glassformer.labs.lookup.course import collate_fn as collate_fn
from glassformer.labs.lookup.course import generate_synthetic_data as generate_synthetic_data
from glassformer.labs.lookup.course import greedy_decode as greedy_decode
from glassformer.labs.lookup.course import plot_cross_attention as plot_cross_attention
from glassformer.labs.lookup.course import train_model as train_model
from glassformer.labs.lookup.course_network import (
    CrossAttentionLookupModel as CrossAttentionLookupModel,
)
from glassformer.labs.lookup.course_network import Decoder as Decoder
from glassformer.labs.lookup.course_network import DecoderLayer as DecoderLayer
from glassformer.labs.lookup.course_network import Encoder as Encoder
from glassformer.labs.lookup.course_network import EncoderLayer as EncoderLayer
from glassformer.labs.lookup.course_network import MultiHeadAttention as MultiHeadAttention
from glassformer.labs.lookup.course_network import (
    PositionWiseFeedForward as PositionWiseFeedForward,
)
from glassformer.labs.lookup.experiments import LAB as LAB

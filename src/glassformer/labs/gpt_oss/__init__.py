"""The course's GPT-OSS lab under its own names: parts, model, training, generation, report."""

from glassformer.labs.gpt_oss.course import GroupedQueryAttention as GroupedQueryAttention
from glassformer.labs.gpt_oss.course import MixtureOfExperts as MixtureOfExperts
from glassformer.labs.gpt_oss.course import RotaryPositionalEmbedding as RotaryPositionalEmbedding
from glassformer.labs.gpt_oss.course import Router as Router
from glassformer.labs.gpt_oss.course import SWAttention as SWAttention
from glassformer.labs.gpt_oss.course import SwiGLUFeedForward as SwiGLUFeedForward
from glassformer.labs.gpt_oss.course import Transformer as Transformer
from glassformer.labs.gpt_oss.course import TransformerBlock as TransformerBlock
from glassformer.labs.gpt_oss.course import calculate_attention as calculate_attention
from glassformer.labs.gpt_oss.course import (
    calculate_sliding_attention as calculate_sliding_attention,
)
from glassformer.labs.gpt_oss.course_training import calc_per_token_acc as calc_per_token_acc
from glassformer.labs.gpt_oss.course_training import eval_acc as eval_acc
from glassformer.labs.gpt_oss.course_training import generate as generate
from glassformer.labs.gpt_oss.course_training import (
    get_dist_after_with_temp_and_topp as get_dist_after_with_temp_and_topp,
)
from glassformer.labs.gpt_oss.course_training import token_choice_adv as token_choice_adv
from glassformer.labs.gpt_oss.course_training import token_choice_greedy as token_choice_greedy
from glassformer.labs.gpt_oss.course_training import train as train
from glassformer.labs.gpt_oss.experiments import LAB as LAB

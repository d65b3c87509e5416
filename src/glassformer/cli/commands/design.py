"""``glassformer design``: build a head that solves a task, prove it, and write its weights."""

from glassformer.cli import writing
from glassformer.cli.commands.verify import built_in
from glassformer.cli.flags import DesignFlags
from glassformer.cli.terminal import say
from glassformer.errors import InputError
from glassformer.files import require_absent
from glassformer.handcraft.designs import design, designable
from glassformer.handcraft.verification import verify
from glassformer.handcraft.weight_files import require_place, require_size, write_head
from glassformer.text import shown


def main(flags: DesignFlags) -> int:
    """Build, verify and print a head; write its weights and return 0 if they are proved, else 1."""
    require_absent(flags.out, flags.overwrite)
    require_place(flags.out)
    task = built_in(flags.task, flags.letters, flags.max_len)
    if task.description is None:
        raise InputError(
            f"the task {task.name!r}, which no single head can do",
            f"one of {', '.join(designable())}",
            "Choose one of these; its proof is in glassformer.handcraft.tasks, and 'glassformer "
            "verify' finds a failing sequence for any weights.",
        )
    error = flags.largest_error
    if not 0 < error < task.decisive_error:  # also refuses NaN
        raise InputError(
            got=f"--largest-error {error}",
            expected=f"above 0 and below {task.decisive_error:g}, so that no output is misread",
            fix="Pass 1e-9, for example.",
        )
    built = design(task, flags.largest_error)
    require_size(built.weights.matrices)
    say(f"{task.name}: {task.summary}")
    say(f"  head            {built.description}")
    sizes = ", ".join(
        f"{name} {len(matrix)} x {matrix.shape[1]}"
        for name, matrix in built.weights.matrices.items()
    )
    say(f"  matrices        {sizes}")
    say(f"  sharpness       {built.sharpness:g}, for errors of at most {flags.largest_error:g}\n")
    certificate = verify(built.weights, task, tolerance=flags.largest_error)
    say(str(certificate))
    if certificate.holds:
        with writing(flags.out):
            write_head(built.weights, flags.out, overwrite=flags.overwrite)
        say(f"\nweights: {shown(flags.out)}")
    return 0 if certificate.holds else 1

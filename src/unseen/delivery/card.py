"""A model card in Hugging Face's format, from a run's records and nothing else."""

from __future__ import annotations

from pathlib import Path

from unseen.core.calibration import Calibration
from unseen.core.words import megabytes
from unseen.runs.results import RunResult
from unseen.runs.settings import NO_TARGET, Settings

TAGS = ["federated-learning", "domain-generalization", "onnx", "unseen"]


def write_card(
    path: Path, settings: Settings, result: RunResult, classes: tuple[str, ...], calibration: Calibration | None
) -> None:
    """README.md of a folder that is ready for the hub."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    measured = []
    if result.accuracy is not None:
        measured = [
            EvalResult(
                task_type="image-classification",
                dataset_type=settings.data.name,
                dataset_name=f"{settings.data.name}, unseen domain {settings.target}",
                metric_type="accuracy",
                metric_value=round(result.accuracy, 4),
            )
        ]
    about = ModelCardData(
        model_name=f"{settings.method} on {settings.data.name}",
        library_name="onnx",
        pipeline_tag="image-classification",
        tags=TAGS,
        eval_results=measured or None,
    )
    text = card_text(settings, result, classes, calibration)
    ModelCard(f"---\n{about.to_yaml()}\n---\n\n{text}").save(path)


def card_text(settings: Settings, result: RunResult, classes: tuple[str, ...], calibration: Calibration | None) -> str:
    parts = [
        f"# {settings.method} on {settings.data.name}\n",
        _what(settings, result, classes),
        "## How to use it\n\n```\npip install onnxruntime numpy pillow\npython predict.py FOLDER_OF_IMAGES\n```\n\n"
        "`model.onnx` takes images in [0, 1], float32, B x 3 x "
        f"{settings.data.image_size} x {settings.data.image_size}, and gives logits. `model.json` has the classes.\n",
        f"## Data\n\n{_data(settings, result)}",
        f"## What was sent\n\nPer client and round: {result.ledger}.\n",
        f"## Results\n\n{_results(settings, result, calibration)}",
        f"## Limits\n\n{_limits(settings, result, calibration)}",
    ]
    return "\n".join(parts)


def _what(settings: Settings, result: RunResult, classes: tuple[str, ...]) -> str:
    fields = ", ".join(f"{name}={value}" for name, value in settings.fields.items())
    remark = f" {result.remark.capitalize()}." if result.remark else ""
    return (
        f"An image classifier of {len(classes)} classes ({', '.join(classes)}). {result.clients} sites trained it together "
        f"by federated learning; no image left its site. Method: {settings.method}{f' ({fields})' if fields else ''}."
        f"{remark} Backbone: {settings.net.backbone}, {result.parameters:,} parameters. Round {result.selected_round} of "
        f"{result.rounds}, chosen by {result.selection_words}. Made with unseen, commit {result.commit or 'not recorded'}.\n"
    )


def _data(settings: Settings, result: RunResult) -> str:
    left = "No site was left out." if settings.target == NO_TARGET else f"Left out: {settings.target}."
    if not result.in_domain and not result.training_images:
        return f"{settings.data.name}, {result.clients} sites. {left}\n"
    kind = "test" if result.in_domain_images == "test" else "validation"
    lines = [f"| site | training images | accuracy on its {kind} images |", "|---|---:|---:|"]
    for client in sorted({*result.in_domain, *result.training_images}):
        count = result.training_images.get(client)
        score = result.in_domain.get(client)
        lines.append(
            f"| {client} | {'not recorded' if count is None else f'{count:,}'} | "
            f"{'not measured' if score is None else f'{100 * score:.1f} %'} |"
        )
    return "\n".join([*lines, "", left]) + "\n"


def _results(settings: Settings, result: RunResult, calibration: Calibration | None) -> str:
    lines = []
    if result.accuracy is not None:
        lines.append(f"- On the unseen domain {settings.target}: {100 * result.accuracy:.1f} % accuracy{result.mark}.")
    if result.in_domain_accuracy is not None:
        lines.append(
            f"- On held-back {result.in_domain_images} images of the training sites: "
            f"{100 * result.in_domain_accuracy:.1f} % accuracy (mean over sites)."
        )
    if calibration is not None:
        lines.append(
            f"- Calibrated on {calibration.images:,} validation images of {calibration.clients} sites: temperature "
            f"{calibration.temperature:.2f}; calibration error {100 * calibration.error_before:.1f} % before and "
            f"{100 * calibration.error_after:.1f} % after."
        )
    lines.append(
        f"- Trained in {result.seconds:.0f} s; each site sent {megabytes(result.bytes_up)} per round and received "
        f"{megabytes(result.bytes_down)}."
    )
    return "\n".join(lines) + "\n"


def _limits(settings: Settings, result: RunResult, calibration: Calibration | None) -> str:
    lines = []
    if result.accuracy is None:
        lines.append(
            "- It was not tested on a site that it did not train on. `unseen choose` measured its method on each site in "
            "turn; `unseen check` tests this model on labelled images of your site: do so before you rely on it."
        )
    else:
        lines.append(f"- Tested on one unseen domain, {settings.target}; another site may be harder.")
    lines.append("- At a new site expect less than the accuracy on the training sites, which is of images like theirs.")
    lines.append("- It knows the classes above only, and gives one of them to every image.")
    lines.append(
        "- It has no calibration: there are no prediction sets, and nothing is said to be unlike training."
        if calibration is None
        else "- Probabilities, prediction sets and what counts as unlike training hold for images like those of the "
        "training sites. At a new site sets cover less than they say."
    )
    if settings.plan.precision != "float32":
        lines.append(f"- Trained in {settings.plan.precision}; the exported graph computes in float32.")
    return "\n".join(lines) + "\n"

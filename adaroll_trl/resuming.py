"""The part of the trainer that is about checkpoints: what lives over steps, and how a run goes on with it.

A checkpoint may fall into a generation batch that is not used up. That batch is generated again on resume, so its
rollouts must not have been counted: what is saved then is the state from before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from .checkpoint import changed_options, checkpoint_to_resume, load_state, naming_state_file, save_state
from .run_folder import CHECKPOINT_PREFIX, STATE_FILE

if TYPE_CHECKING:
    from typing import Any as _Base
else:
    _Base = object


class Lasting(Protocol):
    """Something whose state lives over steps, and is JSON-serialisable."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state as it is now: a function that returns it whatever follows, until the next snapshot."""
        ...


class ResumingMixin(_Base):
    """Saves and restores the parts that `_lasting_parts` names, beside what TRL saves."""

    _from_main: Callable[..., Any]
    _before_batch: dict[str, Callable[[], dict[str, Any]]]

    def _lasting_parts(self) -> dict[str, Lasting]:
        """By name, all that lives over steps."""
        raise NotImplementedError

    def _remember_state(self) -> None:
        """A batch begins: keep what a checkpoint within it needs."""
        self._before_batch = {name: part.snapshot() for name, part in self._lasting_parts().items()}

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as TRL does; `resume_from_checkpoint=True` takes the newest checkpoint that was saved to its end."""
        output_dir = self.args.output_dir
        checkpoint = self._from_main(lambda: checkpoint_to_resume(output_dir, resume_from_checkpoint, self._warn))
        return super().train(checkpoint, *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.args.should_save:
            name = f"{CHECKPOINT_PREFIX}{self.state.global_step}"
            save_state(os.path.join(self._get_output_dir(trial=trial), name), self._state_to_save())
        super()._save_checkpoint(model, trial)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # The last that all processes write: what the main one writes next tells that the checkpoint is whole
        self.accelerator.wait_for_everyone()

    def _state_to_save(self) -> dict[str, Any]:
        partly_used = self._step % (self.args.steps_per_generation * self.num_iterations) != 0
        if partly_used:
            return {name: before() for name, before in self._before_batch.items()}
        return {name: part.state_dict() for name, part in self._lasting_parts().items()}

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._restore(checkpoint)

    def _restore(self, checkpoint: str) -> None:
        state = self._from_main(lambda: load_state(checkpoint))  # the folder may be on one machine only
        if changed := self._from_main(lambda: changed_options(checkpoint, self.adaroll)):
            self._warn(changed)
        parts = self._lasting_parts()
        if state is None:
            if self.adaroll.belief_decay > 0 or parts["allocator"].state_dict():
                self._warn(
                    f"{checkpoint} has no {STATE_FILE}: beliefs start at the prior, the allocator's state anew."
                )
            return
        with naming_state_file(checkpoint):
            for name, part in parts.items():
                if name in state:
                    part.load_state_dict(state[name])

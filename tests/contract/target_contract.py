"""What every target must do, wherever it runs vLLM. A test class of its own gives `target` and `ends_server`."""

import urllib.error
import urllib.request

import pytest

from validator.targets.target import RunningServer, Target, TargetError

FLAGS = {"tensor_parallel_size": 1, "max_num_seqs": 24}


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class TargetContract:
    """Facts of any target."""

    owns_server = True
    """Whether leaving the target ends its server."""

    @pytest.fixture
    def target(self) -> Target:
        raise NotImplementedError

    @pytest.fixture
    def broken_target(self) -> Target:
        """One whose server cannot run."""
        raise NotImplementedError

    def test_its_server_answers_while_it_runs_and_only_a_server_of_its_own_ends(self, target: Target) -> None:
        with target.running(FLAGS) as server:
            assert answers(server.url)
            assert server.fresh == self.owns_server
        assert answers(server.url) == (not self.owns_server)

    def test_a_failure_inside_ends_its_server_too(self, target: Target) -> None:
        seen: list[RunningServer] = []
        with pytest.raises(ZeroDivisionError), target.running(FLAGS) as server:
            seen.append(server)
            raise ZeroDivisionError
        assert answers(seen[0].url) == (not self.owns_server)

    def test_the_server_says_what_it_does(self, target: Target) -> None:
        with target.running(FLAGS) as server:
            facts = server.facts
        assert facts.vllm_version and facts.model_id and facts.model_path
        assert facts.kv_cache_tokens is not None and facts.kv_cache_tokens > 0
        assert {name: facts.flags[name] for name in FLAGS} == FLAGS
        assert isinstance(facts.flags["block_size"], int)
        assert isinstance(facts.flags["async_scheduling"], bool)

    def test_a_server_that_cannot_run_is_a_broken_environment_with_a_reason(self, broken_target: Target) -> None:
        with pytest.raises(TargetError, match=r"\w+ \w+"), broken_target.running(FLAGS):
            pass

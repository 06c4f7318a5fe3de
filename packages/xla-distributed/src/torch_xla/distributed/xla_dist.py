"""Start a command on all hosts of a Cloud TPU pod."""

from xla_distributed.job.pod_command import get_args_parser, main, resolve_and_execute

__all__ = ["get_args_parser", "main", "resolve_and_execute"]

if __name__ == "__main__":
    main()

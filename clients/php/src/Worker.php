<?php

declare(strict_types=1);

namespace Tickr;

use Tickr\Worker\Child;
use Tickr\Worker\Engine;
use Tickr\Worker\Frames;
use Tickr\Worker\Settings;
use Tickr\Worker\Slot;

/**
 * Executes jobs. Each slot is a process of its own, so handlers may block, leak and crash: the process that holds the
 * leases goes on.
 */
final class Worker
{
    /** @var array<string, \Closure(Context): mixed> */
    private array $handlers = [];
    private ?\Closure $onStart = null;
    private ?\Closure $leaves = null;
    private ?\Closure $stops = null;
    private bool $looks = false;
    private ?\Closure $paused = null;
    private \Closure $log;
    private ?Client $enqueuer = null;

    public function __construct(private readonly Client $client, private readonly Settings $settings = new Settings())
    {
        $this->log = static function (string $line): void {
            fwrite(\STDERR, gmdate('Y-m-d\TH:i:s\Z') . " tickr: $line\n");
        };
    }

    /**
     * Execute the jobs of a kind with a handler.
     *
     * @param string                            $kind    the name of a kind, or a class with the attribute {@see Kind}
     * @param callable(mixed, Context): mixed $handler gets the payload, in arrays or as an object of the class, and the
     *                                                 context. What it returns is the result of the job
     *
     * @throws \InvalidArgumentException when the kind has a handler already
     */
    public function handle(string $kind, callable $handler): self
    {
        $of = Kind::of($kind);
        $name = $of?->name ?? $kind;
        if (isset($this->handlers[$name])) {
            throw new \InvalidArgumentException("the kind \"$name\" has a handler already");
        }
        $handler = $handler(...);
        $this->handlers[$name] = $of === null
            ? static fn (Context $context): mixed => $handler($context->attempt->payload, $context)
            : static fn (Context $context): mixed => $handler(
                Kind::build($kind, $context->attempt->payload),
                $context,
            );
        return $this;
    }

    /** Call this in each new process, before its first job: it is the place to open connections. */
    public function onProcessStart(callable $call): self
    {
        $this->onStart = $call(...);
        return $this;
    }

    /**
     * Replace a process after a job when this returns true there, for example because it uses too much memory.
     *
     * @param callable(): bool $leaves
     */
    public function replaceProcessWhen(callable $leaves): self
    {
        $this->leaves = $leaves(...);
        return $this;
    }

    /**
     * Stop the worker after a job when this returns true in its process. Jobs of other processes may finish, as after
     * SIGTERM.
     *
     * @param callable(): bool $stops
     * @param bool             $alsoIdle ask every five seconds as well, in a process of its own, so that an idle
     *                                   worker stops, too
     */
    public function stopWhen(callable $stops, bool $alsoIdle = false): self
    {
        $this->stops = $stops(...);
        $this->looks = $alsoIdle;
        return $this;
    }

    /**
     * Fetch no jobs as long as this returns true. It is called before each request for jobs, and must not block.
     *
     * @param callable(): bool $paused
     */
    public function pauseWhile(callable $paused): self
    {
        $this->paused = $paused(...);
        return $this;
    }

    /**
     * Show the API key of this client, with the scope `enqueue`, for the jobs of {@see Context::then}. Without it the
     * API key of the worker goes with them, which enqueues nothing if it has the scope `work`.
     *
     * @throws \InvalidArgumentException when the client does not have the addresses of the worker: they get its API key
     */
    public function enqueueWith(Client $client): self
    {
        [$server, $known] = [$this->client->addresses()->urls(), $client->addresses()->urls()];
        if (array_diff($server, $known) !== []) {
            throw new \InvalidArgumentException(
                'jobs that follow are enqueued by the server of the worker (' . implode(', ', $server)
                . '), but the client has other addresses (' . implode(', ', $known) . '): give it those of the worker',
            );
        }
        $this->enqueuer = $client;
        return $this;
    }

    /**
     * Write the lines of the worker elsewhere than to standard error.
     *
     * @param callable(string): void $log
     */
    public function logTo(callable $log): self
    {
        $this->log = $log(...);
        return $this;
    }

    /**
     * Execute jobs until SIGTERM or SIGINT. Then the worker fetches nothing more, lets jobs finish within the grace,
     * gives back the rest, and returns. A second signal ends at once.
     *
     * @return int exit code for the program: 0 after an orderly end
     *
     * @throws Problem         when the server refuses the worker at its start
     * @throws \LogicException without a handler, or when ext-pcntl or ext-posix is missing
     */
    public function run(): int
    {
        if ($this->handlers === []) {
            throw new \LogicException('a worker needs a handler: call handle() first');
        }
        if (!\function_exists('pcntl_fork') || !\function_exists('posix_kill')) {
            throw new \LogicException('a worker needs the extensions pcntl and posix');
        }
        $handlers = $this->handlers;
        $engine = new Engine(
            $this->client,
            $this->settings,
            array_map('strval', array_keys($handlers)),
            fn (Engine $engine): ?Slot => $this->spawn($engine),
            $this->log,
            $this->enqueuer,
        );
        if ($this->paused !== null) {
            $engine->pauseWhile($this->paused);
        }
        if ($this->looks) {
            $engine->stopAfter($this->look(...));
        }
        $async = pcntl_async_signals(true);
        $stop = static fn () => $engine->stop();
        $former = [SIGTERM => pcntl_signal_get_handler(SIGTERM), SIGINT => pcntl_signal_get_handler(SIGINT)];
        pcntl_signal(SIGTERM, $stop, false);
        pcntl_signal(SIGINT, $stop, false);
        pcntl_signal(SIGCHLD, static fn () => null, false);
        try {
            return $engine->run();
        } finally {
            foreach ($former as $signal => $handler) {
                pcntl_signal($signal, $handler);
            }
            pcntl_signal(SIGCHLD, SIG_DFL);
            pcntl_async_signals($async);
        }
    }

    /** Start the process of a slot. */
    private function spawn(Engine $engine): ?Slot
    {
        return $this->fork($engine, function (Frames $frames, int $parent): void {
            if ($this->onStart !== null) {
                ($this->onStart)();
            }
            $handlers = $this->handlers;
            $handler = static fn (Context $context): mixed => $handlers[$context->attempt->kind]($context);
            $never = static fn (): bool => false;
            [$leaves, $stops] = [$this->leaves ?? $never, $this->stops ?? $never];
            (new Child($frames, $handler, $leaves, $stops, $this->settings->maxJobs, $parent))->run();
        });
    }

    /** Start a process that looks once whether the worker must stop. */
    private function look(Engine $engine): ?Slot
    {
        return $this->fork($engine, function (Frames $frames): void {
            try {
                if ($this->onStart !== null) {
                    ($this->onStart)();
                }
                if ($this->stops !== null && ($this->stops)()) {
                    $frames->send(['type' => 'stop']);
                    $frames->flushAll();
                }
            } catch (\Throwable) {
                // A cache that is out asks for no stop. The next process looks again.
            }
        });
    }

    /** @param \Closure(Frames, int): void $run the new process ends after it */
    private function fork(Engine $engine, \Closure $run): ?Slot
    {
        [$ours, $theirs] = Frames::pair();
        $parent = (int) getmypid();
        $pid = pcntl_fork();
        if ($pid === -1) {
            ($this->log)('the system gave no further process');
            $ours->close();
            $theirs->close();
            return null;
        }
        if ($pid > 0) {
            $theirs->close();
            return new Slot($ours, $pid, true);
        }
        // Only the parent decides when a job ends. A signal to its group, such as that of Ctrl-C, does not come here.
        posix_setpgid(0, 0);
        // A signal that is ignored stays ignored in the programs that a handler starts. One that is handled does not.
        $self = getmypid();
        $ignore = static function (int $signal) use ($self): void {
            if (getmypid() !== $self) {
                // A helper that a handler forks ends at the signal.
                pcntl_signal($signal, SIG_DFL);
                posix_kill((int) getmypid(), $signal);
            }
        };
        pcntl_signal(SIGINT, $ignore);
        pcntl_signal(SIGTERM, $ignore);
        pcntl_signal(SIGCHLD, SIG_DFL);
        foreach ($engine->slots() as $slot) {
            $slot->frames->close();
        }
        $ours->close();
        try {
            mt_srand();
            $run($theirs, $parent);
        } catch (\Throwable $error) {
            ($this->log)('a process could not start: ' . $error::class . ': ' . $error->getMessage());
        }
        Child::vanish();
    }
}

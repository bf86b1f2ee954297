<?php

declare(strict_types=1);

namespace Tickr\Worker;

use Tickr\Cancelled;
use Tickr\Client;
use Tickr\Http\Channel;
use Tickr\Http\Request;
use Tickr\Http\Response;
use Tickr\Json;
use Tickr\Problem;
use Tickr\Text;
use Tickr\Uuid;

/**
 * Speaks the protocol of remote workers, as docs/WORKERS.md of tickr specifies it.
 *
 * It runs in a process that executes no handler, so no handler can block its beats. One loop waits for the answers to
 * four calls (register, fetch, beat, finish) and for the processes of the slots at the same time.
 *
 * @internal
 */
final class Engine
{
    private const MAX_FETCH = 500;
    private const MAX_VERDICTS = 500;
    /** Most attempts that a request may list. */
    private const MAX_HOLDING = 1_000;
    /** Bytes of verdicts or reports in one call; the usual `body_limit` is 256 KiB. */
    private const CALL_BYTES = 200_000;
    private const LOG_BYTES = 16_384;
    private const SEEN_TOKENS = 10_000;
    /** Seconds between a beat that carries reports and the one before it. */
    private const REPORT_SECONDS = 0.5;
    /** Seconds for which a report waits that the server could not store, because the row is locked. */
    private const UNSAVED_SECONDS = 1.0;
    /** Seconds that a stopped handler has at the end of the grace, before its process is killed. */
    private const LAST_SECONDS = 0.5;
    /** Seconds after the grace in which verdicts are still repeated. */
    private const FLUSH_SECONDS = 10.0;
    /** Seconds after which a refused first registration is an error: a kind may have been declared just now. */
    private const REFUSED_SECONDS = 3.0;
    /** Part of a lease without an answered beat after which handlers stop: another worker may start their jobs. */
    private const LEASE_PART = 0.9;
    /** Seconds between two looks whether the program must stop. */
    private const LOOK_SECONDS = 5.0;
    /** Answers that refuse what a call says. Any other answer says nothing about it, and may come from a proxy. */
    private const REFUSALS = [400, 413, 422];
    /** Longest pause between two calls that a server answered with 404. */
    private const LONGEST_PAUSE = 4.0;
    /** The first pause after a process that could not start, and the longest one. */
    private const SPAWN_PAUSE = 1.0;
    private const LONGEST_SPAWN_PAUSE = 30.0;

    private readonly Repeating $register;
    private readonly Repeating $fetch;
    private readonly Repeating $beat;
    private readonly Repeating $finish;
    private readonly Channel $leave;

    private ?string $worker = null;
    private string $formerWorker = '';
    /** The id in the path of the finish that is under way. */
    private string $finishedAs = '';
    private float $beatSeconds = 20.0;
    private float $leaseSeconds;
    private float $registerAt = 0.0;
    /** Until when a refused first registration is repeated, from its first refusal on. */
    private ?float $registerUntil = null;
    private float $nextFetch = 0.0;
    private float $nextBeat = 0.0;
    private float $lastBeat = 0.0;
    /** When the newest answered beat was sent. */
    private float $answeredBeat = 0.0;
    /** @var array<string|int, Held> the verdicts that are being sent, by their tokens */
    private array $finishing = [];
    /** Most verdicts of the next call: one after a call was refused. */
    private int $finishMost = self::MAX_VERDICTS;
    private float $nextFinish = 0.0;
    private float $finishPause = 0.1;
    /** @var array<string, Held> the attempts that the beat under way lists */
    private array $beating = [];
    /** @var array<string, array{Held, ?array{percent: float, note: ?string}, ?string}> reports that a beat carries */
    private array $reporting = [];
    /** Whether reports wait for the beat behind the one that is under way. */
    private bool $moreReports = false;
    /** Most reports of the next beat: half as many after a beat was refused. */
    private int $reportMost = PHP_INT_MAX;

    /** @var list<Slot> */
    private array $slots = [];
    /** @var array<string, Held> */
    private array $held = [];
    /** @var list<Held> attempts that came while no slot was free */
    private array $ready = [];
    /** @var array<string, true> tokens that were executed; one that comes again is not */
    private array $seen = [];

    private ?float $stopAt = null;
    private int $stops = 0;
    private bool $graceOver = false;
    /** When the next process may start, and the pause after the next one that could not. */
    private float $spawnAt = 0.0;
    private float $spawnPause = self::SPAWN_PAUSE;
    /** @var (\Closure(): bool)|null says whether the worker must fetch nothing for now */
    private ?\Closure $paused = null;
    /** @var (\Closure(self): ?Slot)|null starts a process that looks whether the program must stop */
    private ?\Closure $look = null;
    private ?Slot $looker = null;
    private float $lookAt = 0.0;

    /**
     * @param list<string>                    $kinds
     * @param (\Closure(self): ?Slot)|null    $spawn starts a process for one more slot
     * @param \Closure(string): void          $log
     * @param Client|null                     $enqueuer has the API key for the jobs that follow; null for that of the
     *                                                  worker
     */
    public function __construct(
        private readonly Client $client,
        private readonly Settings $settings,
        private readonly array $kinds,
        private readonly ?\Closure $spawn,
        private readonly \Closure $log,
        private readonly ?Client $enqueuer = null,
    ) {
        $this->leaseSeconds = $settings->leaseMs / 1000;
        $repeating = static fn (string $what, string $member, \Closure $isFinal, bool $obeys = true) =>
            new Repeating($what, $member, $isFinal, $obeys, $client->channel(), $client->addresses(), $log);
        // A registration that is refused is a mistake of the program, or of its configuration.
        $refusesWorker = static fn (int $status) => !\in_array($status, [408, 429], true) && $status < 500;
        $this->register = $repeating('the registration', 'id', $refusesWorker);
        // An operator may mend a proxy, or the rights of the API key, while the worker runs.
        $refuses = static fn (int $status) => $status === 404 || \in_array($status, self::REFUSALS, true);
        $this->fetch = $repeating('a request for jobs', 'jobs', $refuses);
        // While a beat waits as long as a server asks, every lease grows old.
        $this->beat = $repeating('a beat', 'lost', $refuses, false);
        $this->finish = $repeating('a finish', 'results', $refuses);
        $this->leave = $client->channel();
    }

    public function add(Slot $slot): void
    {
        $this->slots[] = $slot;
    }

    /** @return list<Slot> */
    public function slots(): array
    {
        return $this->slots;
    }

    /** @param \Closure(): bool $paused says whether the worker must fetch nothing for now */
    public function pauseWhile(\Closure $paused): void
    {
        $this->paused = $paused;
    }

    /**
     * Look every few seconds whether the program must stop. A process of its own does so, because the look may block.
     *
     * @param \Closure(self): ?Slot $look starts this process, which says `stop` if so, and ends
     */
    public function stopAfter(\Closure $look): void
    {
        $this->look = $look;
        $this->lookAt = Channel::now() + self::LOOK_SECONDS;
    }

    /** Stop: the first call lets jobs finish, the second one ends at once. */
    public function stop(): void
    {
        $this->stops++;
        $this->stopAt ??= Channel::now();
    }

    /**
     * Run until the worker is stopped, or until all slots that it did not start are gone.
     *
     * @return int exit code of the program
     *
     * @throws Problem when the server refuses the worker at its start
     */
    public function run(): int
    {
        while (true) {
            if ($this->stops > 1) {
                foreach ($this->slots as $slot) {
                    $slot->kill();
                }
                return 1;
            }
            $this->readSlots();
            $this->stepRegister();
            $this->stepBeat();
            $this->stepFinish();
            $this->stepFetch();
            $this->watch();
            $this->startLook();
            if ($this->isOver()) {
                break;
            }
            $this->wait();
        }
        $this->depart();
        return 0;
    }

    // Slots.

    private function readSlots(): void
    {
        foreach ($this->slots as $slot) {
            $slot->frames->flush();
            // A process that has ended may have written its last messages before, so they are read after the look.
            $ended = $slot->reap();
            foreach ($slot->frames->receive() as $message) {
                $this->hear($slot, $message);
            }
            if ($ended || $slot->frames->hasEnded()) {
                $this->lose($slot);
            }
        }
    }

    /** @param array<string, mixed> $message */
    private function hear(Slot $slot, array $message): void
    {
        $held = $slot->held;
        switch ($message['type'] ?? '') {
            case 'want':
                $slot->wants = true;
                $slot->started = true;
                $slot->ask = (int) ($message['ask'] ?? 0);
                $this->spawnPause = self::SPAWN_PAUSE;
                break;
            case 'unwant':
                $slot->wants = false;
                if ($held !== null && !$held->began) {
                    $this->release($held);
                }
                $this->releaseUnwanted();
                break;
            case 'began':
                if ($held !== null) {
                    $held->began = true;
                }
                break;
            case 'stop':
                // The program asks for the orderly stop, whichever of its processes says so, and however often.
                $this->stopAt ??= Channel::now();
                break;
            case 'leaving':
                $slot->leaving = true;
                break;
            case 'progress':
                if ($held !== null) {
                    $held->progress = ['percent' => (float) $message['percent'], 'note' => $message['note'] ?? null];
                }
                break;
            case 'checkpoint':
                if ($held !== null) {
                    $held->checkpoint = $message['json'];
                }
                break;
            case 'log':
                if ($held !== null) {
                    $held->log = self::appended($held->log, (string) $message['line']);
                }
                break;
            case 'end':
                if ($held !== null) {
                    $this->end($held, $message);
                }
                break;
        }
    }

    private static function appended(string $log, string $line): string
    {
        $log .= ($log === '' ? '' : "\n") . $line;
        return \strlen($log) > 2 * self::LOG_BYTES ? Text::newest($log, self::LOG_BYTES) : $log;
    }

    /** The process of a slot has ended. */
    private function lose(Slot $slot): void
    {
        if ($slot->owns && $slot->end === null) {
            $slot->kill();
            $status = 0;
            pcntl_waitpid($slot->pid, $status);
            $slot->end = pcntl_wifsignaled($status) ? 'signal ' . pcntl_wtermsig($status) : 'exit code '
                . pcntl_wexitstatus($status);
        }
        $held = $slot->held;
        if ($held !== null) {
            $isReleased = \in_array($held->cancelled, [Cancelled::STOPPING, Cancelled::LOST], true);
            $why = match ($held->cancelled) {
                null => 'the process of the handler ended before the handler did'
                    . ($slot->owns ? ": $slot->end" : ''),
                Cancelled::STOPPING, Cancelled::LOST => '',
                Cancelled::DEADLINE => 'the time of the attempt is over, and its process was killed',
                default => 'the job was cancelled, and its process was killed',
            };
            // A program that ended before it took the job has not begun it.
            $unbegun = !$slot->owns && !$held->began;
            $verdict = $isReleased || $unbegun ? 'released' : 'failed';
            $this->end($held, ['verdict' => $verdict, 'error' => $unbegun ? '' : $why]);
        }
        if ($slot->owns && !$slot->started) {
            $this->failedToStart($slot);
        }
        $slot->frames->close();
        $this->slots = array_values(array_filter($this->slots, static fn (Slot $other) => $other !== $slot));
    }

    /** A process ended before it could take a job, for example because its database is out. */
    private function failedToStart(Slot $slot): void
    {
        ($this->log)("a process ended before its first job ($slot->end); the next one starts in $this->spawnPause s");
        $this->spawnAt = Channel::now() + $this->spawnPause;
        $this->spawnPause = min(2 * $this->spawnPause, self::LONGEST_SPAWN_PAUSE);
        // Another worker may execute what waits for it.
        while (\count($this->ready) > \count($this->takers())) {
            $this->release(array_pop($this->ready));
        }
    }

    /** Give back an attempt that has not begun. */
    private function release(Held $held): void
    {
        $this->ready = array_values(array_filter($this->ready, static fn (Held $other) => $other !== $held));
        $this->end($held, ['verdict' => 'released']);
        $held->waiting = null;
    }

    /** Give back what has come for a program that does not wait for it any more. */
    private function releaseUnwanted(): void
    {
        if ($this->spawn === null && $this->takers() === []) {
            array_map($this->release(...), $this->ready);
        }
    }

    /**
     * A handler has ended.
     *
     * @param array<string, mixed> $end
     */
    private function end(Held $held, array $end): void
    {
        if ($held->slot !== null) {
            $held->waiting = $held->slot->owns ? null : $held->slot;
            $held->slot->held = null;
            $held->slot = null;
        }
        $held->killAt = INF;
        if ($held->lost) {
            // A verdict would change nothing.
            $this->drop($held->token);
            return;
        }
        $verdict = (string) $end['verdict'];
        if (\in_array($held->cancelled, [Cancelled::CANCELLED, Cancelled::DEADLINE], true)) {
            // The job was cancelled or its time is over, whatever the handler says afterwards.
            $end = ['error' => $end['error'] ?? (new Cancelled($held->cancelled))->getMessage()];
            $verdict = 'failed';
        } elseif (($end['cancelled'] ?? false) === true) {
            $verdict = 'released';
        }
        $members = ['token' => Json::encode($held->token), 'verdict' => Json::encode($verdict)];
        if ($verdict === 'succeeded') {
            if (\is_string($end['result'] ?? null)) {
                $members['result'] = $end['result'];
            }
            if (($end['follow_ups'] ?? []) !== []) {
                $members['follow_ups'] = '[' . implode(',', $end['follow_ups']) . ']';
            }
        } elseif ($verdict !== 'released' || trim((string) ($end['error'] ?? '')) !== '') {
            $members['error'] = Json::encode(Text::error((string) ($end['error'] ?? '')));
        }
        if (isset($end['delay_ms']) && \in_array($verdict, ['failed', 'snoozed'], true)) {
            $members['delay_ms'] = Json::encode(max(0, (int) $end['delay_ms']));
        }
        $log = Text::newest(Text::clean($held->log), self::LOG_BYTES);
        if ($log !== '') {
            $members['log'] = Json::encode($log);
        }
        $held->verdict = $members;
        $held->progress = null;
        if ($verdict === 'succeeded') {
            $held->checkpoint = null;
        }
    }

    /** Most jobs that the next request may ask for. */
    private function free(): int
    {
        // A slot is free when its handler has ended. While verdicts are not answered, their attempts stay listed.
        $room = self::MAX_HOLDING - \count($this->listed());
        if ($this->spawn !== null) {
            $busy = \count(array_filter($this->slots, static fn (Slot $slot) => $slot->held !== null));
            $most = Channel::now() < $this->spawnAt ? \count($this->takers()) : $this->settings->slots - $busy;
            return min($room, $most - \count($this->ready));
        }
        return min($room, \count($this->takers()) - \count($this->ready));
    }

    /** @return list<Slot> the processes that wait for a job */
    private function takers(): array
    {
        return array_values(array_filter(
            $this->slots,
            static fn (Slot $slot) => $slot->wants && !$slot->leaving && $slot->held === null,
        ));
    }

    /** Give the attempts that have come to processes. */
    private function assign(): void
    {
        while ($this->ready !== []) {
            $slot = $this->takers()[0] ?? null;
            if ($slot === null) {
                $idle = array_filter($this->slots, static fn (Slot $slot) => $slot->held === null && !$slot->leaving);
                $maySpawn = $this->spawn !== null && Channel::now() >= $this->spawnAt;
                if ($maySpawn && \count($idle) < \count($this->ready)) {
                    $new = ($this->spawn)($this);
                    if ($new !== null) {
                        $this->slots[] = $new;
                        continue;
                    }
                }
                return;
            }
            $held = array_shift($this->ready);
            $held->slot = $slot;
            $slot->held = $held;
            $slot->wants = false;
            $slot->frames->send(['type' => 'job', 'ask' => $slot->ask] + $held->job);
        }
    }

    private function cancel(Held $held, string $reason): void
    {
        if ($held->cancelled === Cancelled::LOST && $reason === Cancelled::CANCELLED) {
            // A beat was answered again. The handler was told to stop, and now the job is known to be cancelled.
            $held->cancelled = $reason;
        }
        if ($held->verdict !== null || ($held->cancelled !== null && $reason !== Cancelled::STOPPING)) {
            return;
        }
        $first = $held->cancelled === null;
        $held->cancelled ??= $reason;
        $seconds = $reason === Cancelled::STOPPING ? self::LAST_SECONDS : $this->settings->killMs / 1000;
        $held->killAt = min($held->killAt, Channel::now() + $seconds);
        if ($held->slot === null) {
            // It waits for a process, so it has not begun.
            $this->ready = array_values(array_filter($this->ready, static fn (Held $other) => $other !== $held));
            $error = (new Cancelled($reason))->getMessage();
            $this->end($held, ['verdict' => 'failed', 'cancelled' => true, 'error' => $error]);
        } elseif ($first) {
            $held->slot->frames->send(['type' => 'cancel', 'reason' => $reason]);
        }
    }

    /** When the attempt must stop unless a beat is answered. */
    private function leaseEnd(Held $held): float
    {
        return $held->renewed + $this->leaseSeconds * self::LEASE_PART;
    }

    /**
     * Stop the attempts whose leases may be over, because another worker may start their jobs.
     *
     * They stay listed, so that a later beat tells the truth. A verdict that comes all the same is sent.
     */
    private function watchLeases(float $now): void
    {
        $stopped = 0;
        foreach ($this->held as $held) {
            if ($held->verdict === null && $held->cancelled === null && $now >= $this->leaseEnd($held)) {
                $this->cancel($held, Cancelled::LOST);
                $stopped++;
            }
        }
        if ($stopped > 0) {
            ($this->log)("no beat was answered for most of the lease, so $stopped attempts are told to stop");
        }
    }

    /** Look at deadlines, at leases, at handlers that do not stop, and at the end of the grace. */
    private function watch(): void
    {
        $now = Channel::now();
        $this->watchLeases($now);
        foreach ($this->held as $held) {
            if ($held->verdict === null && $held->cancelled === null && $now >= $held->deadline) {
                $this->cancel($held, Cancelled::DEADLINE);
            }
            if ($now < $held->killAt) {
                continue;
            }
            // Also for a program that the engine may not kill. `wait` does not wait for a moment that is over.
            $held->killAt = INF;
            $slot = $held->slot;
            if ($slot !== null && $slot->owns) {
                $slot->kill();
                // What it wrote before counts.
                foreach ($slot->frames->receive() as $message) {
                    $this->hear($slot, $message);
                }
                $this->lose($slot);
            }
        }
        if ($this->stopAt === null) {
            return;
        }
        $this->fetch->abort();
        // When the program of an agent is gone, nothing will execute what has come for it.
        $alone = $this->spawn === null && $this->slots === [];
        if (!$this->graceOver && ($alone || $now >= $this->stopAt + $this->settings->graceMs / 1000)) {
            $this->graceOver = true;
            foreach ($this->held as $held) {
                $this->cancel($held, Cancelled::STOPPING);
            }
        }
        if ($this->ready !== []) {
            // A process that is starting takes what came before the signal.
            return;
        }
        foreach ($this->slots as $slot) {
            if ($slot->held === null && !$slot->leaving) {
                $slot->leaving = true;
                $slot->frames->send(['type' => 'exit']);
            }
        }
    }

    private function startLook(): void
    {
        $now = Channel::now();
        if ($this->look === null || $this->stopAt !== null || $now < $this->lookAt) {
            return;
        }
        // One that still looks has waited too long, for example for a cache that is out.
        $this->looker?->kill();
        $this->lookAt = $now + self::LOOK_SECONDS;
        $this->looker = ($this->look)($this);
        if ($this->looker !== null) {
            $this->looker->started = $this->looker->leaving = true;
            $this->slots[] = $this->looker;
        }
    }

    private function isOver(): bool
    {
        if ($this->spawn === null && $this->slots === [] && $this->stopAt === null) {
            $this->stop();
        }
        if ($this->stopAt === null) {
            return false;
        }
        if ($this->held === []) {
            return true;
        }
        $last = $this->stopAt + $this->settings->graceMs / 1000 + self::LAST_SECONDS + self::FLUSH_SECONDS;
        return Channel::now() >= $last;
    }

    // Calls.

    private function stepRegister(): void
    {
        if ($this->worker !== null) {
            return;
        }
        $now = Channel::now();
        if ($this->register->isIdle() && $now >= $this->registerAt && $this->stopAt === null) {
            $body = [
                'name' => $this->settings->name, 'kinds' => $this->kinds, 'slots' => $this->settings->slots,
                'lease_ms' => $this->settings->leaseMs, 'host' => substr((string) gethostname(), 0, 255),
                'pid' => (int) getmypid(),
            ];
            if ($this->settings->queues !== null) {
                $body['queues'] = $this->settings->queues;
            }
            if ($this->settings->version !== '') {
                $body['version'] = $this->settings->version;
            }
            $this->register->start(new Request('POST', '/v1/workers', Json::encode($body), [], 10.0));
        }
        $response = $this->register->step();
        if ($response === null) {
            return;
        }
        if (!$response->isSuccess()) {
            $problem = Problem::of($response);
            $this->registerUntil ??= $now + self::REFUSED_SECONDS;
            if ($this->formerWorker === '' && $now >= $this->registerUntil) {
                throw $problem;
            }
            ($this->log)('the server refused the registration: ' . $problem->getMessage());
            $this->registerAt = $now + ($this->formerWorker === '' ? 0.5 : 5.0);
            return;
        }
        $answer = json_decode($response->body, true);
        if (!\is_string($answer['id'] ?? null)) {
            $this->register->repeat('the answer is not the JSON of tickr');
            return;
        }
        $this->worker = $this->formerWorker = $answer['id'];
        $this->beatSeconds = max(0.1, ((int) ($answer['beat_ms'] ?? 20_000)) / 1000);
        $this->leaseSeconds = ((int) ($answer['lease_ms'] ?? $this->settings->leaseMs)) / 1000;
        $this->nextBeat = $now + ($this->held === [] ? $this->beatSeconds : 0.0);
        $this->nextFetch = 0.0;
        ($this->log)("registered as $this->worker");
    }

    /** Registers again, unless another call has done so since `$known` was told that it is not registered. */
    private function registerAgain(?string $known): void
    {
        if ($this->worker !== null && $this->worker === $known) {
            ($this->log)("$this->worker is not registered any more, so it registers again");
            $this->worker = null;
            $this->registerAt = 0.0;
            $this->fetch->abort();
            $this->beat->abort();
            $this->beating = $this->reporting = [];
        }
    }

    private function path(string $call): string
    {
        return '/v1/workers/' . rawurlencode($this->worker ?? $this->formerWorker) . "/$call";
    }

    private function stepFetch(): void
    {
        $this->assign();
        if ($this->worker === null) {
            return;
        }
        $now = Channel::now();
        if ($this->stopAt === null && $this->fetch->isIdle() && $now >= $this->nextFetch && $this->free() > 0) {
            if ($this->paused !== null && ($this->paused)()) {
                $this->nextFetch = $now + 1.0;
                return;
            }
            $body = [
                'slots' => min($this->free(), self::MAX_FETCH), 'wait_ms' => $this->settings->waitMs,
                'holding' => array_map('strval', array_keys($this->listed())), 'fetch_id' => Uuid::v7(),
            ];
            $timeout = $this->settings->waitMs / 1000 + 15.0;
            $this->fetch->start(new Request('POST', $this->path('fetch'), Json::encode($body), [], $timeout));
        }
        $response = $this->fetch->step();
        if ($response === null) {
            return;
        }
        if ($response->status === 404) {
            $this->registerAgain($this->worker);
            return;
        }
        if (!$response->isSuccess()) {
            ($this->log)('the server refused a request for jobs: ' . Problem::of($response)->getMessage());
            $this->nextFetch = $now + 5.0;
            return;
        }
        try {
            $answer = Json::members($response->body);
            $jobs = Json::members($answer['jobs'] ?? '');
            $members = array_map(Json::members(...), $jobs);
        } catch (\InvalidArgumentException) {
            $this->fetch->repeat('the answer is not the JSON of tickr');
            return;
        }
        $took = isset($answer['took_ms']) ? (float) $answer['took_ms'] / 1000 : INF;
        if ($this->fetch->waited() - $took >= $this->beatSeconds * 0.75) {
            // After a quarter of the lease on its way, an answer counts as lost. The next request lists none of it.
            if ($members !== []) {
                ($this->log)('an answer with ' . \count($members) . ' jobs came late and counts as lost');
            }
            $members = [];
        }
        $since = $this->leaseStart($took);
        foreach ($members as $job) {
            $this->take($job, $since);
        }
        if (($answer['drain'] ?? '') === 'true') {
            $this->nextFetch = $now + $this->beatSeconds;
        }
        $this->assign();
        $this->releaseUnwanted();
        if ($this->spawn === null && $members === []) {
            foreach ($this->takers() as $slot) {
                $slot->wants = false;
                $slot->frames->send(['type' => 'none', 'ask' => $slot->ask]);
            }
        }
    }

    /**
     * From when the leases of the jobs hold that the fetch has brought. It may have waited for longer than a lease.
     *
     * @param float $took the seconds for which it was at the server, or INF when the answer does not say so
     */
    private function leaseStart(float $took): float
    {
        if ($took === INF) {
            return max($this->fetch->startedAt(), $this->answeredBeat);
        }
        // A repeated answer may have jobs that were claimed a quarter of the lease before.
        $earlier = $this->fetch->wasRepeated() ? $this->leaseSeconds / 4 : 0.0;
        return max($this->fetch->startedAt(), Channel::now() - max(0.0, $this->fetch->waited() - $took) - $earlier);
    }

    /**
     * @param array<string, string> $job   the members of a job, as JSON texts
     * @param float                 $since from when its lease holds
     */
    private function take(array $job, float $since): void
    {
        $token = (string) json_decode($job['token'] ?? '""');
        if ($token === '' || isset($this->seen[$token])) {
            return;
        }
        $this->seen[$token] = true;
        if (\count($this->seen) > self::SEEN_TOKENS) {
            $this->seen = \array_slice($this->seen, self::SEEN_TOKENS / 2, null, true);
        }
        $held = new Held($token, $job, Channel::now(), $since);
        $this->held[$token] = $held;
        $this->ready[] = $held;
    }

    private function stepBeat(): void
    {
        if ($this->worker === null) {
            return;
        }
        $now = Channel::now();
        if ($this->beat->isIdle() && $now >= $this->beatDue()) {
            // At least two of them fit between the end of a beat and that of the lease.
            $timeout = max(1.0, min($this->beatSeconds / 2, 10.0));
            // A job that came since the last try is listed, or it would be given back while it runs.
            $body = fn (): string => $this->nextReports(Channel::now());
            $this->beat->start(new Request('POST', $this->path('beat'), $body, [], $timeout));
            $this->lastBeat = $now;
            $this->nextBeat = $now + $this->beatSeconds;
        }
        $response = $this->beat->step();
        if ($response === null) {
            return;
        }
        [$beaten, $reported] = [$this->beating, $this->reporting];
        $this->beating = $this->reporting = [];
        if ($response->status === 404) {
            $this->registerAgain($this->worker);
            return;
        }
        if (!$response->isSuccess()) {
            // A refused report must not keep the lease from being renewed.
            ($this->log)('the server refused a beat: ' . Problem::of($response)->getMessage());
            $this->nextBeat = $reported === [] ? $now + 1.0 : $now;
            if (\count($reported) > 1) {
                $this->reportMost = intdiv(\count($reported), 2);
                return;
            }
        } elseif ($this->moreReports) {
            $this->nextBeat = $now;
        } else {
            $this->reportMost = PHP_INT_MAX;
        }
        if ($response->isSuccess()) {
            $this->answeredBeat = $this->beat->sentAt();
            foreach ($beaten as $held) {
                $held->renewed = max($held->renewed, $this->answeredBeat);
            }
        }
        $answer = json_decode($response->body, true);
        // What the server could not store for a locked row goes with a later beat again.
        $unsaved = array_flip($answer['unsaved'] ?? []);
        foreach ($reported as [$held, $progress, $checkpoint]) {
            if (isset($unsaved[$held->token])) {
                $held->unsavedUntil = $now + self::UNSAVED_SECONDS;
                continue;
            }
            $held->unsavedUntil = 0.0;
            if ($held->progress === $progress) {
                $held->progress = null;
            }
            if ($held->checkpoint === $checkpoint) {
                $held->checkpoint = null;
            }
        }
        foreach ($answer['lost'] ?? [] as $token) {
            $held = $this->held[$token] ?? null;
            if ($held !== null && $held->verdict === null) {
                $held->lost = true;
                $this->cancel($held, Cancelled::LOST);
            }
        }
        foreach ($answer['cancel'] ?? [] as $token) {
            if (isset($this->held[$token])) {
                $this->cancel($this->held[$token], Cancelled::CANCELLED);
            }
        }
        // A drain is left to the answer of a fetch. If beats put the next fetch off as well, it would never come.
    }

    /** @return array<string, Held> the attempts that requests list, by their tokens */
    private function listed(): array
    {
        return array_filter($this->held, static fn (Held $held) => !$held->lost);
    }

    private function beatDue(): float
    {
        $due = $this->nextBeat;
        foreach ($this->held as $held) {
            if ($held->hasReport()) {
                $due = min($due, max($this->lastBeat + self::REPORT_SECONDS, $held->unsavedUntil));
            }
        }
        return $due;
    }

    /**
     * The body of a beat: every attempt, and as many reports as one call carries. The others follow at once.
     *
     * Reports that the server could not store pause, and then come behind the others.
     */
    private function nextReports(float $now): string
    {
        $this->reporting = [];
        $this->moreReports = false;
        $listed = $this->beating = $this->listed();
        $entries = array_map(static fn (Held $held) => $held->entry(), $listed);
        $bytes = array_sum(array_map(\strlen(...), $entries));
        $due = array_filter($listed, static fn (Held $one) => $one->hasReport() && $now >= $one->unsavedUntil);
        uasort($due, static fn (Held $one, Held $other) => $one->unsavedUntil <=> $other->unsavedUntil);
        foreach ($due as $token => $held) {
            $report = $held->report();
            $bytes += \strlen($report) - \strlen($entries[$token]);
            $isFull = $bytes > self::CALL_BYTES || \count($this->reporting) >= $this->reportMost;
            if ($this->reporting !== [] && $isFull) {
                $this->moreReports = true;
                break;
            }
            $entries[$token] = $report;
            $this->reporting[$token] = [$held, $held->progress, $held->checkpoint];
        }
        return '{"holding":[' . implode(',', $entries) . ']}';
    }

    private function stepFinish(): void
    {
        if ($this->finish->isIdle()) {
            $this->startFinish();
        }
        $response = $this->finish->step();
        if ($response === null) {
            return;
        }
        $sent = $this->finishing;
        $results = $response->isSuccess() ? self::resultsOf($response) : [];
        if ($response->isSuccess() && array_diff_key($sent, $results) !== []) {
            $this->finish->repeat('the answer is not the JSON of tickr');
            return;
        }
        $this->finishing = [];
        foreach ($sent as $held) {
            $held->sending = false;
        }
        if ($response->status === 404) {
            // The server does not know the id in the path, so the verdicts go out again with the id of a new worker.
            $this->registerAgain($this->finishedAs);
            $this->nextFinish = Channel::now() + $this->finishPause * random_int(75, 125) / 100;
            $this->finishPause = min($this->finishPause * 2, self::LONGEST_PAUSE);
            return;
        }
        $this->finishPause = 0.1;
        if ($response->isSuccess()) {
            $this->finishMost = self::MAX_VERDICTS;
            foreach (array_intersect_key($results, $sent) as $token => $result) {
                $token = (string) $token;
                if ($result['result'] === 'refused' && isset($this->held[$token])) {
                    $wrong = array_map(
                        static fn (array $one): string => trim(($one['field'] ?? '') . ' ' . ($one['detail'] ?? '')),
                        $result['errors'] ?? [],
                    );
                    $this->mend($this->held[$token], implode('; ', $wrong));
                    continue;
                }
                if ($result['result'] === 'locked' && isset($this->held[$token])) {
                    // Another session locks the row of the job. The other verdicts do not wait for it.
                    $held = $this->held[$token];
                    $held->notBefore = Channel::now() + $held->pause;
                    $held->pause = min($held->pause * 2, self::LONGEST_PAUSE);
                    continue;
                }
                if ($result['result'] !== 'settled') {
                    ($this->log)('a verdict came too late: ' . $result['result']);
                }
                $this->drop($token);
            }
        } else {
            $this->refused($sent, $response);
        }
        if ($this->finish->isIdle()) {
            $this->startFinish();
        }
    }

    /** @return array<string|int, array<string, mixed>> the results of a finish by their tokens */
    private static function resultsOf(Response $response): array
    {
        $results = [];
        $listed = json_decode($response->body, true)['results'] ?? null;
        foreach (\is_array($listed) ? $listed : [] as $result) {
            if (\is_string($result['token'] ?? null) && \is_string($result['result'] ?? null)) {
                $results[$result['token']] = $result;
            }
        }
        return $results;
    }

    private function startFinish(): void
    {
        if ($this->formerWorker === '' || Channel::now() < $this->nextFinish) {
            return;
        }
        $texts = [];
        $bytes = 0;
        $right = [];
        $now = Channel::now();
        foreach ($this->held as $held) {
            // The next attempt begins with the checkpoint, so that goes first.
            if ($held->verdict === null || ($held->checkpoint !== null && $this->worker !== null)) {
                continue;
            }
            if ($now < $held->notBefore) {
                continue;
            }
            $text = Json::object($held->verdict);
            $bytes += \strlen($text) + 1;
            if ($texts !== [] && ($bytes > self::CALL_BYTES || \count($texts) >= $this->finishMost)) {
                break;
            }
            $texts[] = $text;
            if (isset($held->verdict['follow_ups'])) {
                // The API key of the worker may enqueue nothing, so that of the other client goes with it.
                $right = ($this->enqueuer ?? $this->client)->right();
            }
            $held->sending = true;
            $this->finishing[$held->token] = $held;
        }
        if ($texts !== []) {
            $body = '{"verdicts":[' . implode(',', $texts) . ']}';
            $this->finishedAs = $this->worker ?? $this->formerWorker;
            $this->finish->start(new Request('POST', $this->path('finish'), $body, $right, 10.0));
        }
    }

    /**
     * The server refused a call with verdicts. Send each one alone, and make a failure of one that is refused alone.
     *
     * @param array<string|int, Held> $sent
     */
    private function refused(array $sent, Response $response): void
    {
        $problem = Problem::of($response);
        ($this->log)('the server refused verdicts: ' . $problem->getMessage());
        if (\count($sent) > 1) {
            $this->finishMost = 1;
            return;
        }
        foreach ($sent as $held) {
            $this->mend($held, $problem->getMessage());
        }
    }

    /** Make a failure of a verdict that the server refuses. */
    private function mend(Held $held, string $problem): void
    {
        $error = Text::error('the server refused the verdict of the handler: ' . $problem);
        ($this->log)($error);
        $failed = [
            'token' => Json::encode($held->token),
            'verdict' => Json::encode('failed'),
            'error' => Json::encode($error),
        ];
        if ($held->verdict === $failed) {
            $this->drop($held->token);
        }
        $held->verdict = $failed;
    }

    /** The verdict of an attempt is answered, or none is possible. */
    private function drop(string $token): void
    {
        $waiting = ($this->held[$token] ?? null)?->waiting;
        unset($this->held[$token]);
        $waiting?->frames->send(['type' => 'settled']);
    }

    private function depart(): void
    {
        foreach ($this->slots as $slot) {
            $slot->kill();
        }
        foreach ($this->slots as $slot) {
            if ($slot->owns) {
                $status = 0;
                pcntl_waitpid($slot->pid, $status);
            }
        }
        if ($this->worker === null) {
            return;
        }
        for ($tries = 0; $tries < 3; $tries++) {
            try {
                $response = $this->leave->call(new Request('DELETE', substr($this->path(''), 0, -1), null, [], 3.0));
                if (!$response->isPassing()) {
                    return;
                }
            } catch (\Tickr\ConnectionFailed) {
            }
            usleep(200_000);
        }
        ($this->log)('no server answered the goodbye; the lease of the worker ends by itself');
    }

    private function wait(): void
    {
        $read = $write = [];
        $due = INF;
        foreach ([$this->register, $this->fetch, $this->beat, $this->finish] as $call) {
            $call->streams($read, $write);
            $due = min($due, $call->due());
        }
        foreach ($this->slots as $slot) {
            $read[] = $slot->frames->stream();
            if ($slot->frames->wantsToWrite()) {
                $write[] = $slot->frames->stream();
            }
        }
        $now = Channel::now();
        if ($this->worker === null) {
            $due = min($due, $this->register->isIdle() ? $this->registerAt : INF);
        } else {
            $due = min($due, $this->beat->isIdle() ? $this->beatDue() : INF);
            if ($this->fetch->isIdle() && $this->free() > 0 && $this->stopAt === null) {
                $due = min($due, $this->nextFetch);
            }
        }
        $now < $this->nextFinish && $due = min($due, $this->nextFinish);
        foreach ($this->held as $held) {
            $runs = $held->verdict === null && $held->cancelled === null;
            $due = min($due, $held->killAt, $runs ? min($held->deadline, $this->leaseEnd($held)) : INF);
            $now < $held->notBefore && $due = min($due, $held->notBefore);
        }
        if ($this->stopAt !== null && !$this->graceOver) {
            $due = min($due, $this->stopAt + $this->settings->graceMs / 1000);
        }
        // A grandchild may keep the socket of a dead process open, so the processes are looked at each second.
        Channel::select($read, $write, max(0.0, min($due - $now, 1.0)));
    }
}

<?php

declare(strict_types=1);

namespace Tickr\Tests\Unit;

use PHPUnit\Framework\TestCase;
use Tickr\Cancelled;
use Tickr\Client;
use Tickr\Context;
use Tickr\Failed;
use Tickr\Snoozed;
use Tickr\Tests\Support\Rounds;
use Tickr\Tests\Support\TestServer;
use Tickr\Tests\Support\Wait;
use Tickr\Tests\Support\WorkerProcess;
use Tickr\Worker;
use Tickr\Worker\Agent;
use Tickr\Worker\Settings;

/** The protocol against a server that loses answers, repeats itself and refuses. */
final class WorkerTest extends TestCase
{
    /** @var array<string, string> */
    private array $files = [];
    /** @var list<WorkerProcess> */
    private array $workers = [];

    protected function tearDown(): void
    {
        $this->workers = [];
        array_map('unlink', array_filter($this->files, 'is_file'));
    }

    public function testALostAnswerToAFetchIsAskedForAgainWithTheSameBody(): void
    {
        $server = $this->server(['fetch' => static fn (int $n) => match ($n) {
            1 => 'drop',
            2 => [200, 'no json'],
            3 => [200, ['jobs' => [self::job('t1')], 'drain' => false]],
            default => 'hang',
        }]);
        $worker = $this->worker($server, fn () => 'done');
        $finishes = $server->await('/finish', static fn ($all) => \count($all) >= 1);
        $expected = ['token' => 't1', 'verdict' => 'succeeded', 'result' => 'done'];
        self::assertSame($expected, $finishes[0]['body']['verdicts'][0]);
        $texts = array_column($server->requests('/fetch'), 'text');
        self::assertCount(1, array_unique(\array_slice($texts, 0, 3)));
        self::assertNotSame($texts[0], $server->await('/fetch', static fn ($all) => \count($all) >= 4)[3]['text']);
        $this->assertLeaves($worker, $server);
    }

    public function testAnAnswerThatWasLongOnItsWayStartsNoJobAndIsLogged(): void
    {
        $server = $this->server(['fetch' => static function (int $n): mixed {
            if ($n === 1) {
                usleep(1_600_000);
            }
            return $n > 2 ? 'hang' : [200, ['jobs' => [self::job("t$n")], 'drain' => false, 'took_ms' => 0]];
        }], beatMs: 2_000);
        $worker = $this->worker($server, static fn () => 'done');
        $finishes = $server->await('/finish', static fn ($all) => $all !== []);
        self::assertSame('t2', $finishes[0]['body']['verdicts'][0]['token']);
        self::assertSame([], $server->requests('/fetch')[1]['body']['holding']);
        self::assertStringContainsString('an answer with 1 jobs came late and counts as lost', $worker->log());
    }

    /** The channel sends a request again when a kept connection ends. */
    public function testTheTimeOfATryThatBrokeAfterLongDoesNotMakeTheNextAnswerLate(): void
    {
        $server = $this->server(['fetch' => static function (int $n): mixed {
            if ($n === 2) {
                usleep(1_600_000);
            }
            return match ($n) {
                1 => [200, ['jobs' => [], 'drain' => false]],
                2 => 'drop',
                3 => [200, ['jobs' => [self::job('t1')], 'drain' => false, 'took_ms' => 0]],
                default => 'hang',
            };
        }], beatMs: 2_000);
        $this->worker($server, static fn () => 'done');
        $finishes = $server->await('/finish', static fn ($all) => $all !== []);
        self::assertSame('t1', $finishes[0]['body']['verdicts'][0]['token']);
    }

    public function testATokenThatComesTwiceIsExecutedOnce(): void
    {
        $server = $this->server(['fetch' => static fn (int $n) => match ($n) {
            1, 2 => [200, ['jobs' => [self::job('t1')], 'drain' => false]],
            3 => [200, ['jobs' => [self::job('t1'), self::job('t2')], 'drain' => false]],
            default => 'hang',
        }]);
        $runs = $this->file('runs');
        $this->worker($server, static function ($payload, Context $context) use ($runs): void {
            file_put_contents($runs, $context->attempt->id . "\n", FILE_APPEND);
            usleep(200_000);
        });
        $server->await('/fetch', static fn ($all) => \count($all) >= 4);
        Wait::until(static fn () => str_contains((string) @file_get_contents($runs), 'job-t2'), 'the second job');
        self::assertSame("job-t1\njob-t2\n", file_get_contents($runs));
    }

    public function testAVerdictIsRepeatedUntilItIsAnsweredAndItsTokenStaysHeld(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => match (true) {
                $n === 1 => [200, ['jobs' => [self::job('t1')], 'drain' => false]],
                default => [200, ['jobs' => [], 'drain' => false]],
            },
            'finish' => static fn (int $n, $body) => match ($n) {
                1 => 'drop',
                2 => [503, ['code' => 'store_unavailable', 'detail' => 'x'], ['Retry-After' => '1']],
                default => self::settled($body),
            },
        ]);
        $this->worker($server, static fn () => throw new \DomainException('broken'));
        $finishes = $server->await('/finish', static fn ($all) => \count($all) >= 3);
        self::assertCount(1, array_unique(array_column($finishes, 'text')));
        self::assertSame('DomainException: broken', $finishes[0]['body']['verdicts'][0]['error']);
        $held = array_filter($server->requests('/fetch'), static fn ($one) => $one['body']['holding'] === ['t1']);
        self::assertNotEmpty($held, 'a fetch while the verdict was not answered lists the token');
        $server->await('/fetch', static fn ($all) => $all !== [] && end($all)['body']['holding'] === []);
    }

    public function testAWorkerRegistersAgainAfter404AndKeepsItsAttempts(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1 ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang',
            'beat' => static fn (int $n) => $n === 1
                ? [404, ['code' => 'not_found', 'detail' => 'x']]
                : [200, ['cancel' => [], 'lost' => [], 'drain' => false]],
        ], beatMs: 200);
        $this->worker($server, static function ($payload, Context $context): void {
            $context->sleep(1500);
        }, slots: 2);
        $registrations = $server->await('/workers', static fn ($all) => \count($all) >= 2);
        self::assertSame($registrations[0]['text'], $registrations[1]['text']);
        $beats = $server->await('/w-2/beat', static fn ($all) => \count($all) >= 1);
        self::assertSame([['token' => 't1']], $beats[0]['body']['holding']);
        $server->await('/w-2/fetch', static fn ($all) => \count($all) >= 1 && $all[0]['body']['holding'] === ['t1']);
        $server->await('/w-2/finish', static fn ($all) => \count($all) >= 1);
    }

    public function testBeatsGoOnWhileAHandlerBlocks(): void
    {
        $server = $this->server(['fetch' => static fn (int $n) => $n === 1
            ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang'], beatMs: 100);
        $this->worker($server, static fn () => usleep(1_500_000));
        $server->await('/finish', static fn ($all) => \count($all) >= 1);
        $held = array_filter($server->requests('/beat'), static fn ($one) => $one['body']['holding'] !== []);
        self::assertGreaterThan(8, \count($held));
    }

    public function testARepeatedBeatListsAJobThatCameAfterItsFirstTry(): void
    {
        $tried = $this->file('tried');
        $server = $this->server([
            'fetch' => static function (int $n) use ($tried): mixed {
                static $isGiven = false;
                clearstatcache();
                if ($isGiven) {
                    return 'hang';
                }
                usleep(10_000);
                $isGiven = (string) file_get_contents($tried) !== '';
                return [200, ['jobs' => $isGiven ? [self::job('t1')] : [], 'drain' => false]];
            },
            'beat' => static function (int $n) use ($tried): mixed {
                file_put_contents($tried, 'one');
                return $n <= 5 ? 'drop' : [200, ['cancel' => [], 'lost' => [], 'drain' => false]];
            },
        ], beatMs: 200);
        $this->worker($server, static function ($payload, Context $context): void {
            $context->sleep(60_000);
        });
        $beats = $server->await('/beat', static fn ($all) => \count($all) >= 7);
        $holding = array_column(array_column($beats, 'body'), 'holding');
        self::assertSame([], $holding[0]);
        self::assertSame([['token' => 't1']], $holding[4], 'the job came long before the last failed beat');
        $since = array_search([['token' => 't1']], $holding, true);
        self::assertNotContains([], \array_slice($holding, $since));
    }

    /** @dataProvider beatsWithoutAnAnswer */
    public function testAHandlerStopsBeforeALeaseEndsThatNoBeatRenews(mixed $answer): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1 ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang',
            'beat' => static fn (int $n) => $answer,
        ], beatMs: 200, leaseMs: 4_000);
        $stopped = $this->file('stopped');
        $worker = $this->worker($server, static function ($payload, Context $context) use ($server, $stopped): void {
            try {
                $context->sleep(60_000);
            } catch (Cancelled $cancelled) {
                file_put_contents($stopped, $cancelled->reason);
                $before = \count($server->requests('/beat'));
                $server->await('/beat', static fn ($all) => \count($all) > $before);
                throw $cancelled;
            }
        }, killMs: 20_000);
        $server->await('/fetch', static fn ($all) => $all !== []);
        $told = static fn () => (string) file_get_contents($stopped) ?: null;
        self::assertSame('lost', Wait::until($told, 'the end of the handler', 8.0));
        $finishes = $server->await('/finish', static fn ($all) => $all !== []);
        self::assertSame('released', $finishes[0]['body']['verdicts'][0]['verdict']);
        $last = array_slice($server->requests('/beat'), -1)[0];
        self::assertSame([['token' => 't1']], $last['body']['holding'], 'a beat tells the truth as long as it is held');
        self::assertStringContainsString('1 attempts are told to stop', $worker->log());
    }

    /** @return array<string, array{mixed}> */
    public static function beatsWithoutAnAnswer(): array
    {
        return ['401' => [[401, ['code' => 'unauthorized', 'detail' => 'x']]], 'hang-up' => ['drop']];
    }

    /** @dataProvider longRequests */
    public function testAJobThatALongRequestBringsIsNotStoppedAtOnce(array $took, int $beatMs): void
    {
        $server = $this->server([
            'fetch' => static function (int $n) use ($took): mixed {
                $until = hrtime(true) + 4_200_000_000;
                $answer = [200, ['jobs' => [self::job('t1')], 'drain' => false] + $took];
                return $n > 1 ? 'hang' : static fn () => hrtime(true) < $until ? null : $answer;
            },
        ], $beatMs, 4_000);
        $worker = $this->worker($server, static fn () => 'done');
        $finishes = $server->await('/finish', static fn ($all) => $all !== []);
        self::assertSame('succeeded', $finishes[0]['body']['verdicts'][0]['verdict']);
        self::assertStringNotContainsString('told to stop', $worker->log());
    }

    /** @return array<string, array{array<string, int>, int}> */
    public static function longRequests(): array
    {
        return [
            'the answer says how long it took, and no beat was due' => [['took_ms' => 4_200], 20_000],
            'beats were answered meanwhile' => [[], 200],
        ];
    }

    /** @dataProvider repeatedRequests */
    public function testAJobOfARepeatedAnswerIsTakenForAQuarterOfTheLeaseOlder(int $empty): void
    {
        $server = $this->server(['fetch' => static function (int $n) use ($empty): mixed {
            usleep([0, 1_200_000, 2_800_000][$n - $empty] ?? 0);
            return match ($n - $empty) {
                0 => [200, ['jobs' => [], 'drain' => false]],
                1 => 'drop',
                2 => [200, ['jobs' => [self::job('t1')], 'drain' => false, 'took_ms' => 0]],
                default => 'hang',
            };
        }], leaseMs: 4_000);
        $this->worker($server, static fn () => 'done');
        $finishes = $server->await('/finish', static fn ($all) => $all !== []);
        self::assertSame('released', $finishes[0]['body']['verdicts'][0]['verdict']);
    }

    /** @return array<string, array{int}> the answers on the connection before the request that is repeated */
    public static function repeatedRequests(): array
    {
        return ['by the worker' => [0], 'by its connection' => [1]];
    }

    public function testAHandlerWhoseBeatsAreAnsweredOutlivesItsFirstLease(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1 ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang',
        ], beatMs: 500, leaseMs: 5_000);
        $worker = $this->worker($server, static function ($payload, Context $context): string {
            $context->sleep(7_000);
            return 'done';
        });
        $finishes = $server->await('/finish', static fn ($all) => $all !== [], 14.0);
        self::assertSame('succeeded', $finishes[0]['body']['verdicts'][0]['verdict']);
        self::assertStringNotContainsString('told to stop', $worker->log());
    }

    public function testAHandlerThatEndsItsWorkAfterTheLeaseSendsItsTrueVerdict(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1 ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang',
            'beat' => static fn (int $n) => 'drop',
        ], beatMs: 200, leaseMs: 4_000);
        $this->worker($server, static function ($payload, Context $context): string {
            while (!$context->isCancelled()) {
                usleep(20_000);
            }
            return 'done';
        }, killMs: 20_000);
        $finishes = $server->await('/finish', static fn ($all) => $all !== []);
        $expected = ['token' => 't1', 'verdict' => 'succeeded', 'result' => 'done'];
        self::assertSame($expected, $finishes[0]['body']['verdicts'][0]);
    }

    public function testAHandlerThatDoesNotStopAfterTheLeaseIsKilledAndItsJobReleased(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1 ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang',
            'beat' => static fn (int $n) => 'drop',
        ], beatMs: 200, leaseMs: 4_000);
        $this->worker($server, static fn () => sleep(60), killMs: 300);
        $finishes = $server->await('/finish', static fn ($all) => $all !== []);
        self::assertSame(['token' => 't1', 'verdict' => 'released'], $finishes[0]['body']['verdicts'][0]);
    }

    public function testAnAgentWhoseBeatsFailKeepsTheTokenAndSendsTheTrueVerdict(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1 ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang',
            'beat' => static fn (int $n) => [401, ['code' => 'unauthorized', 'detail' => 'x']],
        ], beatMs: 200, leaseMs: 4_000);
        $log = $this->file('log');
        $agent = Agent::start(
            new Client($server->url),
            new Settings('test', ['q'], 1),
            ['kind'],
            static fn (string $line) => file_put_contents($log, "$line\n", FILE_APPEND),
        );
        self::assertSame('"job-t1"', $agent->next(10.0)['id']);
        Wait::until(static fn () => str_contains((string) file_get_contents($log), 'told to stop'), 'the lease');
        $before = \count($server->requests('/beat'));
        $beats = $server->await('/beat', static fn ($all) => \count($all) > $before);
        self::assertSame([['token' => 't1']], end($beats)['body']['holding']);
        $agent->finish(['verdict' => 'succeeded']);
        self::assertSame('succeeded', $server->requests('/finish')[0]['body']['verdicts'][0]['verdict']);
        $agent->close();
    }

    public function testAnAgentThatCannotStopItsProgramWaitsForItWithoutSpinning(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1 ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang',
            'beat' => static fn (int $n, $body) => [200, [
                'cancel' => array_column($body['holding'], 'token'), 'lost' => [], 'drain' => false,
            ]],
        ], beatMs: 200);
        Rounds::countTo($file = $this->file('rounds'));
        $settings = new Settings('test', ['q'], 1, killMs: 0);
        $agent = Agent::start(new Client($server->url), $settings, ['kind'], static fn (string $line) => null);
        Rounds::countTo(null);
        self::assertSame('"job-t1"', $agent->next(10.0)['id']);
        $cancels = static fn (array $all) => array_filter($all, static fn ($one) => $one['body']['holding'] !== []);
        $server->await('/beat', static fn ($all) => \count($cancels($all)) >= 2);
        $before = Rounds::of($file);
        $beats = \count($server->requests('/beat'));
        $server->await('/beat', static fn ($all) => \count($all) >= $beats + 5);
        $rounds = Rounds::of($file) - $before;
        self::assertGreaterThan(0, $rounds);
        self::assertLessThan(200, $rounds, 'a second has a few rounds for each of five beats');
        $agent->finish(['verdict' => 'failed', 'error' => 'x']);
        $agent->close();
    }

    public function testAnAgentThatIsAskedForTheNextJobEndsTheOneBeforeAsFailed(): void
    {
        $server = $this->server(['fetch' => static fn (int $n) => $n <= 2
            ? [200, ['jobs' => [self::job("t$n")], 'drain' => false]] : 'hang']);
        $settings = new Settings('test', ['q'], 1);
        $agent = Agent::start(new Client($server->url), $settings, ['kind'], static fn (string $line) => null);
        self::assertSame('"job-t1"', $agent->next(10.0)['id']);
        self::assertSame('"job-t2"', $agent->next(10.0)['id']);
        $verdict = $server->requests('/finish')[0]['body']['verdicts'][0];
        self::assertSame(['t1', 'failed'], [$verdict['token'], $verdict['verdict']]);
        self::assertSame('the program did not say how the job ended', $verdict['error']);
        $agent->close();
    }

    public function testAProgramThatAHandlerStartsEndsAtASignalAndNotAtCtrlC(): void
    {
        $server = $this->server(['fetch' => static fn (int $n) => $n === 1
            ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang']);
        $this->worker($server, static function (): array {
            $program = proc_open(['sleep', '60'], [], $pipes);
            try {
                Wait::until(static function () use ($program): bool {
                    proc_terminate($program);
                    return !proc_get_status($program)['running'];
                }, 'the end of the program', 5.0);
            } finally {
                proc_terminate($program, SIGKILL);
            }
            return ['own_group' => posix_getpgrp() === getmypid()];
        });
        $finishes = $server->await('/finish', static fn ($all) => $all !== []);
        $expected = ['token' => 't1', 'verdict' => 'succeeded', 'result' => ['own_group' => true]];
        self::assertSame($expected, $finishes[0]['body']['verdicts'][0]);
    }

    public function testAnIdleWorkerStopsWhenItIsAskedTo(): void
    {
        $server = $this->server([]);
        $asked = $this->file('asked');
        $stops = static fn (): bool => (string) file_get_contents($asked) !== '';
        $worker = $this->workers[] = new WorkerProcess(
            $server->url,
            new Settings('test', ['q'], 1),
            static fn (Worker $worker) => $worker->handle('kind', static fn () => null)->stopWhen($stops, true),
        );
        $server->await('/fetch', static fn ($all) => $all !== []);
        file_put_contents($asked, 'yes');
        $this->assertLeaves($worker, $server, false);
    }

    public function testALostAttemptIsStoppedAndGetsNoVerdict(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => match ($n) {
                1 => [200, ['jobs' => [self::job('t1')], 'drain' => false]],
                2 => [200, ['jobs' => [self::job('t2')], 'drain' => false]],
                default => 'hang',
            },
            'beat' => static fn (int $n, $body) => [200, [
                'cancel' => [],
                'lost' => array_values(array_intersect(['t1'], array_column($body['holding'], 'token'))),
                'drain' => false,
            ]],
        ], beatMs: 200);
        $this->worker($server, static function ($payload, Context $context): string {
            if ($context->attempt->id === 'job-t1') {
                $context->sleep(60_000);
            }
            return 'done';
        });
        $finishes = $server->await('/finish', static fn ($all) => \count($all) >= 1);
        self::assertSame(['t2'], array_column($finishes[0]['body']['verdicts'], 'token'));
        $server->await('/beat', static fn ($all) => $all !== [] && end($all)['body']['holding'] === []);
    }

    public function testALostAttemptWhoseHandlerGoesOnIsListedNoMore(): void
    {
        // The attempt is lost when its handler has begun, and so cannot be taken back.
        $reported = static fn ($body) => array_column(
            array_filter($body['holding'], static fn ($one) => isset($one['percent'])),
            'token',
        );
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1 ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang',
            'beat' => static fn (int $n, $body) => [200, [
                'cancel' => [],
                'lost' => $reported($body),
                'drain' => false,
            ]],
        ], beatMs: 200);
        $this->worker($server, static function ($payload, Context $context): void {
            $context->progress(10);
            sleep(8);
        }, slots: 2);
        $later = static function (array $beats) use ($reported): array {
            $told = array_keys(array_filter($beats, static fn ($one) => $reported($one['body']) !== []));
            return $told === [] ? [] : \array_slice($beats, $told[0] + 1);
        };
        $beats = $later($server->await('/beat', static fn ($all) => \count($later($all)) >= 4));
        self::assertSame([], array_merge(...array_column(array_column($beats, 'body'), 'holding')));
    }

    public function testACancelledHandlerThatDoesNotStopIsKilled(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => match ($n) {
                1 => [200, ['jobs' => [self::job('t1')], 'drain' => false]],
                2 => [200, ['jobs' => [self::job('t2')], 'drain' => false]],
                default => 'hang',
            },
            'beat' => static fn (int $n, $body) => [200, [
                'cancel' => array_values(array_intersect(['t1'], array_column($body['holding'], 'token'))),
                'lost' => [],
                'drain' => false,
            ]],
        ], beatMs: 200);
        $this->worker($server, static function ($payload, Context $context): string {
            if ($context->attempt->id === 'job-t1') {
                $context->log('last words');
                sleep(60);
            }
            return 'done';
        }, killMs: 300);
        $finishes = $server->await('/finish', static fn ($all) => \count($all) >= 2);
        self::assertSame([
            'token' => 't1', 'verdict' => 'failed', 'error' => 'the job was cancelled, and its process was killed',
            'log' => 'last words',
        ], $finishes[0]['body']['verdicts'][0]);
        self::assertSame('t2', $finishes[1]['body']['verdicts'][0]['token']);
    }

    public function testACheckpointReachesTheServerBeforeTheFailure(): void
    {
        $server = $this->server(['fetch' => static fn (int $n) => $n === 1
            ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang'], beatMs: 60_000);
        $this->worker($server, static function ($payload, Context $context): void {
            $context->progress(30, 'third');
            $context->checkpoint(['row' => 3]);
            throw new \RuntimeException('broken');
        });
        $server->await('/finish', static fn ($all) => \count($all) >= 1);
        $saved = null;
        foreach ($server->requests() as $request) {
            if (str_ends_with($request['path'], '/finish')) {
                break;
            }
            $saved = $request['body']['holding'][0]['checkpoint'] ?? $saved;
        }
        self::assertSame(['row' => 3], $saved);
    }

    public function testJobsFollowASuccessAndNoOtherVerdictAndOnlyTheyShowTheOtherApiKey(): void
    {
        $tokens = ['good', 'plain', 'failed', 'thrown', 'snoozed', 'wrong'];
        $server = $this->server(['fetch' => static fn (int $n) => isset($tokens[$n - 1])
            ? [200, ['jobs' => [self::job($tokens[$n - 1])], 'drain' => false]]
            : 'hang']);
        $handler = static function ($payload, Context $context): mixed {
            $how = substr($context->attempt->id, 4);
            if ($how !== 'plain') {
                $at = new \DateTimeImmutable('@0');
                $context->then('mail', ['to' => 'ü'], ['execute_at' => $at, 'in_batch' => true, 'queue' => null]);
                $context->then('mail', options: ['tags' => ['a']]);
            }
            return match ($how) {
                'good', 'plain' => 'sent',
                'failed' => new Failed('no address'),
                'thrown' => throw new \DomainException('no address'),
                'snoozed' => throw new Snoozed(1, 'busy'),
                'wrong' => $context->then('mail', options: ['unique_key' => 'ada']),
            };
        };
        $this->workers[] = new WorkerProcess(
            $server->url,
            new Settings('test', ['q'], 1),
            static fn (Worker $worker) => $worker
                ->handle('kind', $handler)
                ->enqueueWith(new Client("$server->url/, http://elsewhere.invalid", 'may-enqueue')),
            'may-work',
        );
        $finishes = $server->await('/finish', static fn ($all) => \count($all) >= 6);
        foreach ($finishes as $finish) {
            [$verdict] = $finish['body']['verdicts'];
            self::assertSame('Bearer may-work', $finish['headers']['authorization']);
            $right = $finish['headers']['tickr-enqueue-authorization'] ?? null;
            self::assertSame($verdict['token'] === 'good' ? 'Bearer may-enqueue' : null, $right, $verdict['token']);
            self::assertSame($verdict['token'] === 'good', isset($verdict['follow_ups']), $verdict['token']);
        }
        $followUps = '"follow_ups":[{"kind":"mail","payload":{"to":"ü"},"execute_at":"1970-01-01T00:00:00.000Z",'
            . '"in_batch":true},{"kind":"mail","payload":{},"tags":["a"]}]';
        self::assertStringContainsString($followUps, $finishes[0]['text']);
        self::assertStringContainsString(
            'a job that follows a success has no option "unique_key"',
            $finishes[5]['body']['verdicts'][0]['error'],
        );
    }

    public function testTheApiKeyOfAnotherServerIsNotSentToThatOfTheWorker(): void
    {
        $worker = new Worker(new Client('http://127.0.0.1:1, http://127.0.0.1:2', 'may-work'));
        $this->expectException(\InvalidArgumentException::class);
        $this->expectExceptionMessage('the client has other addresses (http://127.0.0.1:1)');
        $worker->enqueueWith(new Client('http://127.0.0.1:1', 'of-another-server'));
    }

    public function testASuccessWhoseJobsAreRefusedFailsItsAttemptAndSaysWhy(): void
    {
        $wrong = ['field' => 'follow_ups/0/kind', 'detail' => 'no kind is called so'];
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1 ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang',
            'finish' => static fn (int $n, $body) => isset($body['verdicts'][0]['follow_ups'])
                ? [200, ['results' => [['token' => 't1', 'result' => 'refused', 'errors' => [$wrong]]]]]
                : self::settled($body),
        ]);
        $this->worker($server, static function ($payload, Context $context): string {
            $context->then('no-kind');
            return 'sent';
        });
        $finishes = $server->await('/finish', static fn ($all) => \count($all) >= 2);
        self::assertSame([
            'token' => 't1', 'verdict' => 'failed',
            'error' => 'the server refused the verdict of the handler: follow_ups/0/kind no kind is called so',
        ], $finishes[1]['body']['verdicts'][0]);
        self::assertArrayNotHasKey('tickr-enqueue-authorization', $finishes[1]['headers']);
    }

    public function testTheJobsThatFollowCountForTheSizeOfACall(): void
    {
        $tokens = ['t1', 't2', 't3', 't4'];
        $done = $this->file('done');
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1
                ? [200, ['jobs' => array_map(self::job(...), $tokens), 'drain' => false]]
                : 'hang',
            'finish' => static fn (int $n, $body) => \strlen((string) file_get_contents($done)) < 4
                ? [503, ['code' => 'store_unavailable']]
                : self::settled($body),
        ]);
        $this->worker($server, static function ($payload, Context $context) use ($done): void {
            for ($row = 0; $row < 100; $row++) {
                $context->then('mail', ['text' => str_repeat('x', 1_000)]);
            }
            file_put_contents($done, '.', FILE_APPEND);
        }, slots: 4);
        $settled = static fn (array $all): array => array_unique(array_merge(...array_map(
            static fn (array $one) => array_column($one['body']['verdicts'], 'token'),
            $all,
        )));
        $finishes = $server->await('/finish', static fn ($all) => $all !== [] && \count($settled($all)) === 4);
        self::assertLessThan(205_000, max(array_map(\strlen(...), array_column($finishes, 'text'))));
    }

    public function testOneVerdictThatTheServerRefusesHoldsUpNoOther(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => match ($n) {
                1 => [200, ['jobs' => [self::job('t1'), self::job('t2'), self::job('t3')], 'drain' => false]],
                default => 'hang',
            },
            'finish' => static fn (int $n, $body) => match (true) {
                $n === 1 => 'drop',
                \in_array('bad', array_column($body['verdicts'], 'result'), true)
                    => [413, ['code' => 'too_large', 'title' => 't', 'detail' => 'too large']],
                default => self::settled($body),
            },
        ]);
        $this->worker($server, static function ($payload, Context $context): string {
            return $context->attempt->id === 'job-t2' ? 'bad' : 'good';
        }, slots: 3);
        $server->await('/finish', static function ($all): bool {
            $texts = array_filter(array_column($all, 'text'), static fn ($text) => !str_contains($text, '"bad"'));
            return str_contains(implode($texts), 'failed') && str_contains(implode($texts), '"t3"');
        });
        $sent = [];
        foreach ($server->requests('/finish') as $request) {
            foreach ($request['body']['verdicts'] as $verdict) {
                $sent[$verdict['token']] = $verdict['verdict'] . ' ' . ($verdict['result'] ?? $verdict['error']);
            }
        }
        ksort($sent);
        self::assertSame([
            't1' => 'succeeded good',
            't2' => 'failed the server refused the verdict of the handler: too_large: too large',
            't3' => 'succeeded good',
        ], $sent);
    }

    /** @dataProvider strayAnswers */
    public function testAnAnswerThatSaysNothingOfTheVerdictDoesNotChangeIt(array $stray): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1 ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang',
            'finish' => static fn (int $n, $body) => $n <= 3 ? $stray : self::settled($body),
        ]);
        $this->worker($server, static fn () => 'done');
        $finishes = $server->await('/finish', static fn ($all) => \count($all) >= 4);
        usleep(300_000);
        $finishes = $server->requests('/finish');
        self::assertCount(4, $finishes, 'a call that was answered is not repeated');
        self::assertSame(['succeeded'], array_values(array_unique(array_map(
            static fn ($one) => $one['body']['verdicts'][0]['verdict'],
            $finishes,
        ))));
    }

    /** @return array<string, array{array{int, string}}> */
    public static function strayAnswers(): array
    {
        return [
            '404' => [[404, '<html>']], '301' => [[301, '']], '405' => [[405, 'no']], '520' => [[520, '<html>']],
            'no JSON' => [[200, '<html>']], 'another JSON' => [[200, '{}']], 'no token' => [[200, '{"results": []}']],
        ];
    }

    public function testAnUnreadableAnswerToAFinishIsFollowedByPauses(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1 ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang',
            'finish' => static fn () => [200, '<html>'],
        ]);
        $this->worker($server, static fn () => 'done');
        $server->await('/finish', static fn ($all) => \count($all) >= 1);
        usleep(1_000_000);
        self::assertLessThan(8, \count($server->requests('/finish')));
    }

    public function testAnAnswerThatSaysNothingOfTheReportsOfABeatKeepsThem(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1 ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang',
            'beat' => static fn (int $n) => match ($n) {
                1 => [520, '<html>'],
                2 => [200, '<html>'],
                default => [200, ['cancel' => [], 'lost' => [], 'drain' => false]],
            },
        ], beatMs: 60_000);
        $this->worker($server, static function ($payload, Context $context): void {
            $context->checkpoint(['row' => 3]);
            $context->sleep(60_000);
        });
        $beats = $server->await('/beat', static fn ($all) => \count($all) >= 3);
        foreach ($beats as $beat) {
            self::assertSame(['row' => 3], $beat['body']['holding'][0]['checkpoint']);
        }
    }

    public function testARefusedApiKeyEndsTheProgramOnlyBeforeItsFirstRegistration(): void
    {
        $refusal = [401, ['code' => 'unauthorized', 'title' => 't', 'detail' => 'no such API key']];
        $server = new TestServer(static fn () => $refusal);
        $worker = $this->worker($server, static fn () => null);
        self::assertSame(70, $worker->join(10.0));
        self::assertStringContainsString('no such API key', $worker->log());

        $server = $this->server([
            'fetch' => static fn (int $n) => match ($n) {
                1 => [404, ['code' => 'not_found', 'detail' => 'x']],
                2 => [200, ['jobs' => [self::job('t1')], 'drain' => false]],
                default => 'hang',
            },
            'workers' => static fn (int $n) => $n === 2
                ? $refusal : [201, ['id' => "w-$n", 'lease_ms' => 60_000, 'beat_ms' => 20_000]],
        ]);
        $this->worker($server, static fn () => 'done');
        $server->await('/w-3/finish', static fn ($all) => \count($all) >= 1);
    }

    public function testABeatDoesNotWaitAsLongAsAServerAsks(): void
    {
        $server = $this->server([
            'beat' => static fn (int $n) => $n === 1
                ? [503, ['code' => 'stopping', 'detail' => 'x'], ['Retry-After' => '120']]
                : [200, ['cancel' => [], 'lost' => [], 'drain' => false]],
        ], beatMs: 100);
        $this->worker($server, static fn () => null);
        self::assertGreaterThan(1, \count($server->await('/beat', static fn ($all) => \count($all) >= 2, 3.0)));
    }

    public function testWhatALockedRowHoldsUpIsSentAgainAndHoldsUpNoOther(): void
    {
        $answer = ['cancel' => [], 'lost' => [], 'drain' => false];
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1
                ? [200, ['jobs' => array_map(self::job(...), ['t1', 't2', 't3']), 'drain' => false]] : 'hang',
            // The rows of t1 and t2 are locked for the first three calls that name them.
            'beat' => static fn (int $n, $body) => [200, $n <= 3 && isset($body['holding'][0]['checkpoint'])
                ? $answer + ['unsaved' => ['t1']] : $answer],
            'finish' => static fn (int $n, $body) => [200, ['results' => array_map(
                static fn (array $one) => ['token' => $one['token']] + ($n <= 3 && $one['token'] === 't2'
                    ? ['result' => 'locked'] : ['result' => 'settled', 'state' => 'completed']),
                $body['verdicts'],
            )]],
        ], beatMs: 60_000);
        $this->worker($server, static function ($payload, Context $context): string {
            if ($context->attempt->id === 'job-t1') {
                $context->checkpoint(['row' => 9]);
                throw new \DomainException('later');
            }
            return 'done';
        }, slots: 3);
        $tokens = static fn (array $all) => array_merge(...array_map(
            static fn ($one) => array_column($one['body']['verdicts'], 'token'),
            $all,
        ));
        $finishes = $server->await('/finish', static fn ($all) => \in_array('t1', $tokens($all), true)
            && \count(array_keys($tokens($all), 't2', true)) > 1);
        self::assertContains('t3', $tokens($finishes));
        self::assertCount(1, array_keys($tokens($finishes), 't1', true));
        $saves = array_filter($server->requests('/beat'), static fn ($one) => str_contains($one['text'], 'checkpoint'));
        self::assertGreaterThan(1, \count($saves));
    }

    public function testLargeReportsWhoseRowsAreLockedKeepBackNoReportAndNoVerdictOfAnother(): void
    {
        $locked = ['t1', 't2', 't3'];
        $reported = static fn (array $holding) => array_column(
            array_filter($holding, static fn (array $one) => isset($one['checkpoint'])),
            'token',
        );
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1
                ? [200, ['jobs' => array_map(self::job(...), [...$locked, 't4', 't5']), 'drain' => false]] : 'hang',
            'beat' => static fn (int $n, $body) => [200, ['cancel' => [], 'lost' => [], 'drain' => false,
                'unsaved' => array_values(array_intersect($reported($body['holding']), $locked))]],
        ], beatMs: 60_000);
        $begun = hrtime(true);
        $times = static fn (array $beats) => array_count_values(array_merge([], ...array_map(
            static fn ($one) => $reported($one['body']['holding']),
            $beats,
        )));
        $least = static fn (int $count) => static fn (array $beats) => array_filter(
            $locked,
            static fn (string $token) => ($times($beats)[$token] ?? 0) < $count,
        ) === [];
        $this->worker($server, static function ($payload, Context $context) use ($server, $least): string {
            $id = $context->attempt->id;
            if ($id === 'job-t4' || $id === 'job-t5') {
                $server->await('/beat', $least(1));
            }
            if ($id === 'job-t4') {
                $context->checkpoint(str_repeat('y', 60_000));
                throw new \DomainException('later');
            }
            if ($id !== 'job-t5') {
                $context->checkpoint(str_repeat('x', 60_000));
                $context->sleep(60_000);
            }
            return 'done';
        }, slots: 5);
        $server->await('/finish', static fn ($all) => array_diff(['t4', 't5'], array_merge([], ...array_map(
            static fn ($one) => array_column($one['body']['verdicts'], 'token'),
            $all,
        ))) === []);
        self::assertSame(1, $times($server->requests('/beat'))['t4']);
        $beats = $server->await('/beat', $least(3));
        self::assertLessThan(8 + 4 * (hrtime(true) - $begun) / 1e9, \count($beats));
    }

    public function testAWorkerWhoseVerdictsAreNotAnsweredHoldsNoMoreThanARequestMayList(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n, $body) => [200, ['jobs' => array_map(
                static fn (int $one) => self::job("t$n-$one"),
                range(1, $body['slots']),
            ), 'drain' => false]],
            'finish' => static fn () => [403, ['code' => 'forbidden', 'detail' => 'a proxy']],
        ], beatMs: 100);
        $this->worker($server, static fn () => null, slots: 40);
        $isFull = static fn ($one) => \count($one['body']['holding']) >= 1_000;
        $full = static fn (array $all) => array_filter($all, $isFull);
        $server->await('/beat', static fn ($all) => \count($full($all)) >= 3, 60.0);
        $listed = array_map(
            static fn ($one) => \count($one['body']['holding']),
            [...$server->requests('/beat'), ...$server->requests('/fetch')],
        );
        self::assertSame(1_000, max($listed));
    }

    public function testManyCheckpointsGoInSeveralBeats(): void
    {
        $tokens = ['t1', 't2', 't3', 't4', 't5', 't6'];
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1
                ? [200, ['jobs' => array_map(self::job(...), $tokens), 'drain' => false]] : 'hang',
            'beat' => static fn (int $n, $body) => \count(array_column($body['holding'], 'checkpoint')) > 2
                ? [413, ['code' => 'too_large', 'detail' => 'x']]
                : [200, ['cancel' => [], 'lost' => [], 'drain' => false]],
        ], beatMs: 1_000);
        $this->worker($server, static function ($payload, Context $context): void {
            $context->checkpoint(str_repeat('x', 60_000));
            $context->sleep(60_000);
        }, slots: 6);
        $saved = static function (array $beats): array {
            $saved = [];
            foreach ($beats as $beat) {
                $reports = array_filter($beat['body']['holding'], static fn ($one) => isset($one['checkpoint']));
                $saved += \count($reports) > 2 ? [] : array_flip(array_column($reports, 'token'));
            }
            return $saved;
        };
        $beats = $server->await('/beat', static fn ($all) => \count($saved($all)) === 6);
        self::assertLessThan(256 * 1024, max(array_map(static fn ($one) => \strlen($one['text']), $beats)));
        $full = array_filter($beats, static fn ($one) => \count($one['body']['holding']) === 6);
        self::assertNotEmpty($full, 'every beat lists all attempts');
    }

    public function testACheckpointThatTheServerRefusesAloneIsLeftOut(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => $n === 1 ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang',
            'beat' => static fn (int $n, $body) => isset($body['holding'][0]['checkpoint'])
                ? [413, ['code' => 'too_large', 'detail' => 'x']]
                : [200, ['cancel' => [], 'lost' => [], 'drain' => false]],
        ], beatMs: 60_000);
        $this->worker($server, static function ($payload, Context $context): string {
            $context->checkpoint(['row' => 3]);
            $context->sleep(1_000);
            return 'done';
        });
        $server->await('/finish', static fn ($all) => \count($all) >= 1);
        $beats = $server->requests('/beat');
        self::assertSame([true, false], [
            isset($beats[0]['body']['holding'][0]['checkpoint']), isset($beats[1]['body']['holding'][0]['checkpoint']),
        ]);
    }

    public function testABeatThatHangsLeavesTimeForAnotherOneWithinTheLease(): void
    {
        $server = $this->server(['beat' => static fn () => 'hang'], beatMs: 2_000);
        $this->worker($server, static fn () => null);
        $begun = hrtime(true);
        $server->await('/beat', static fn ($all) => \count($all) >= 3);
        self::assertLessThan(6.0, (hrtime(true) - $begun) / 1e9);
    }

    public function testADrainedWorkerAsksAgainAfterABeat(): void
    {
        $server = $this->server([
            'fetch' => static fn (int $n) => [200, ['jobs' => [], 'drain' => true]],
            'beat' => static fn (int $n) => [200, ['cancel' => [], 'lost' => [], 'drain' => true]],
        ], beatMs: 500);
        $this->worker($server, static fn () => null);
        $server->await('/fetch', static fn ($all) => \count($all) >= 3);
        self::assertLessThan(8, \count($server->requests('/fetch')));
    }

    public function testAProcessThatDiesFailsItsAttemptAndIsReplaced(): void
    {
        $server = $this->server(['fetch' => static fn (int $n) => match ($n) {
            1 => [200, ['jobs' => [self::job('t1')], 'drain' => false]],
            2 => [200, ['jobs' => [self::job('t2')], 'drain' => false]],
            3 => [200, ['jobs' => [self::job('t3')], 'drain' => false]],
            4 => [200, ['jobs' => [self::job('t4')], 'drain' => false]],
            default => 'hang',
        }]);
        $this->worker($server, static fn ($payload, Context $context) => match ($context->attempt->id) {
            'job-t1' => posix_kill(getmypid(), SIGKILL),
            'job-t2' => exit(3),
            'job-t3' => ini_set('display_errors', '0') . eval('class Broken { abstract function f(); }'),
            default => 'done',
        });
        $finishes = $server->await('/finish', static fn ($all) => \count($all) >= 4);
        $errors = array_map(static fn ($one) => $one['body']['verdicts'][0]['error'] ?? '', $finishes);
        self::assertSame('the process of the handler ended before the handler did: signal 9', $errors[0]);
        self::assertSame('the handler ended its process with exit()', $errors[1]);
        self::assertStringStartsWith('PHP stopped: ', $errors[2]);
        self::assertSame('succeeded', $finishes[3]['body']['verdicts'][0]['verdict']);
    }

    public function testAHelperThatAHandlerForksEndsWithoutEndingTheAttempt(): void
    {
        $server = $this->server(['fetch' => static fn (int $n) => $n <= 3
            ? [200, ['jobs' => [self::job("t$n")], 'drain' => false]] : 'hang']);
        $runs = $this->file('runs');
        $this->worker($server, static function ($payload, Context $context) use ($runs): array {
            $id = $context->attempt->id;
            file_put_contents($runs, "$id\n", FILE_APPEND);
            $helper = pcntl_fork();
            if ($helper === 0) {
                ini_set('error_log', '/dev/null');
                match ($id) {
                    'job-t1' => exit(0),
                    'job-t2' => sleep(60),
                    'job-t3' => throw new \DomainException('of the helper'),
                };
            }
            $id === 'job-t2' && posix_kill($helper, SIGTERM);
            pcntl_waitpid($helper, $status);
            // What a helper says in the name of the process would come before the verdict.
            usleep(300_000);
            return pcntl_wifexited($status)
                ? ['exit', pcntl_wexitstatus($status)] : ['signal', pcntl_wtermsig($status)];
        });
        $finishes = $server->await('/finish', static fn ($all) => \count($all) >= 3);
        $ends = array_map(static function (array $one): array {
            $verdict = $one['body']['verdicts'][0];
            return [$verdict['token'], $verdict['verdict'], $verdict['result'] ?? null];
        }, $finishes);
        self::assertSame([
            ['t1', 'succeeded', ['exit', 0]],
            ['t2', 'succeeded', ['signal', SIGTERM]],
            ['t3', 'succeeded', ['exit', 255]],
        ], $ends);
        self::assertSame("job-t1\njob-t2\njob-t3\n", file_get_contents($runs));
    }

    public function testAWorkerThatIsToldToStopFinishesWhatItCanAndReleasesTheRest(): void
    {
        $server = $this->server(['fetch' => static fn (int $n) => match ($n) {
            1 => [200, ['jobs' => [self::job('t1'), self::job('t2'), self::job('t3')], 'drain' => false]],
            default => 'hang',
        }]);
        $ready = $this->file('ready');
        $worker = $this->worker($server, static function ($payload, Context $context) use ($ready): string {
            file_put_contents($ready, '.', FILE_APPEND);
            match ($context->attempt->id) {
                'job-t1' => usleep(600_000),
                'job-t2' => $context->sleep(60_000),
                'job-t3' => sleep(60),
            };
            return 'done';
        }, slots: 4, graceMs: 1000);
        Wait::until(static fn () => \strlen((string) @file_get_contents($ready)) === 3, 'the handlers');
        $worker->signal(SIGTERM);
        $begun = hrtime(true);
        $this->assertLeaves($worker, $server, false);
        self::assertLessThan(3.0, (hrtime(true) - $begun) / 1e9);
        $verdicts = [];
        foreach ($server->requests('/finish') as $request) {
            $verdicts += array_column($request['body']['verdicts'], 'verdict', 'token');
        }
        ksort($verdicts);
        self::assertSame(['t1' => 'succeeded', 't2' => 'released', 't3' => 'released'], $verdicts);
    }

    public function testProcessesThatAskForTheStopOneAfterTheOtherLetTheOthersFinish(): void
    {
        $server = $this->server(['fetch' => static fn (int $n) => $n === 1
            ? [200, ['jobs' => [self::job('t1'), self::job('t2'), self::job('t3')], 'drain' => false]] : 'hang']);
        $gate = $this->file('gate');
        $handler = static function ($payload, Context $context) use ($gate): string {
            // The first two end one after the other, and the third one after both.
            $place = (int) substr($context->attempt->id, -1);
            while (\strlen((string) file_get_contents($gate)) + 1 < $place) {
                usleep(10_000);
                clearstatcache();
            }
            usleep(200_000);
            file_put_contents($gate, '.', FILE_APPEND);
            return 'done';
        };
        $worker = $this->workers[] = new WorkerProcess(
            $server->url,
            new Settings('test', ['q'], 3, graceMs: 20_000),
            static fn (Worker $worker) => $worker->handle('kind', $handler)->stopWhen(static fn (): bool => true),
        );
        $this->assertLeaves($worker, $server, false);
        $verdicts = [];
        foreach ($server->requests('/finish') as $request) {
            $verdicts += array_column($request['body']['verdicts'], 'verdict', 'token');
        }
        ksort($verdicts);
        self::assertSame(['t1' => 'succeeded', 't2' => 'succeeded', 't3' => 'succeeded'], $verdicts);
    }

    public function testAProcessThatCannotStartGivesItsJobBackAndIsFollowedByPauses(): void
    {
        $server = $this->server(['fetch' => static fn (int $n) => match ($n) {
            1, 2 => [200, ['jobs' => [self::job("t$n")], 'drain' => false]],
            default => 'hang',
        }]);
        $starts = $this->file('starts');
        $start = static function () use ($starts): void {
            file_put_contents($starts, '.', FILE_APPEND);
            if (\strlen((string) file_get_contents($starts)) === 1) {
                throw new \RuntimeException('the database is out');
            }
        };
        $worker = $this->workers[] = new WorkerProcess(
            $server->url,
            new Settings('test', ['q'], 1),
            static fn (Worker $worker) => $worker->handle('kind', static fn () => 'done')->onProcessStart($start),
        );
        $finishes = $server->await('/finish', static fn ($all) => \count($all) >= 2);
        $verdicts = array_map(static fn ($one) => $one['body']['verdicts'][0]['verdict'], $finishes);
        self::assertSame(['released', 'succeeded'], $verdicts);
        self::assertSame(2, \strlen((string) file_get_contents($starts)));
        self::assertStringContainsString('the database is out', $worker->log());
        $this->assertLeaves($worker, $server);
    }

    public function testAJobThatComesForAProgramThatDoesNotWaitAnyMoreIsGivenBack(): void
    {
        $gate = $this->file('gate');
        $server = $this->server(['fetch' => static function (int $n) use ($gate): mixed {
            if ($n > 2) {
                return 'hang';
            }
            while ($n === 1 && (string) file_get_contents($gate) === '') {
                usleep(10_000);
                clearstatcache();
            }
            return [200, ['jobs' => [self::job("t$n")], 'drain' => false]];
        }]);
        $settings = new Settings('test', ['q'], 1);
        $agent = Agent::start(new Client($server->url), $settings, ['kind'], static fn (string $line) => null);
        do {
            self::assertNull($agent->next(0.2));
        } while ($server->requests('/fetch') === []);
        file_put_contents($gate, 'open');
        $finishes = $server->await('/finish', static fn ($all) => $all !== []);
        self::assertSame('released', $finishes[0]['body']['verdicts'][0]['verdict']);
        // The next question has an answer of its own.
        self::assertSame('"job-t2"', $agent->next(10.0)['id']);
        $agent->close();
    }

    public function testASecondSignalEndsAtOnce(): void
    {
        $server = $this->server(['fetch' => static fn (int $n) => $n === 1
            ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang']);
        $ready = $this->file('ready');
        $worker = $this->worker($server, static function () use ($ready): void {
            file_put_contents($ready, (string) getmypid());
            sleep(60);
        }, graceMs: 60_000);
        $child = (int) Wait::until(static fn () => @file_get_contents($ready) ?: null, 'the handler');
        $worker->signal(SIGTERM);
        $worker->signal(SIGINT);
        self::assertSame(1, $worker->join(5.0));
        Wait::until(static fn () => !posix_kill($child, 0), 'the end of the handler');
    }

    public function testARefusedWorkerSaysWhy(): void
    {
        $server = new TestServer(static fn () => [422, [
            'code' => 'invalid_request', 'title' => 't', 'detail' => 'invalid worker',
            'errors' => [['pointer' => '/kinds/0', 'detail' => 'is not declared']],
        ]]);
        $worker = $this->worker($server, static fn () => null);
        self::assertSame(70, $worker->join(10.0));
        self::assertStringContainsString('/kinds/0 is not declared', $worker->log());
    }

    public function testTheNextAddressServesWhenOneIsGone(): void
    {
        $server = $this->server(['fetch' => static fn (int $n) => $n === 1
            ? [200, ['jobs' => [self::job('t1')], 'drain' => false]] : 'hang']);
        $closed = stream_socket_server('tcp://127.0.0.1:0');
        $dead = 'http://' . stream_socket_get_name($closed, false);
        fclose($closed);
        $this->worker("$dead,$server->url", static fn () => 'done');
        $server->await('/finish', static fn ($all) => \count($all) >= 1);
        self::assertTrue(true);
    }

    public function testAnAddressIsNotAskedForJobsBeforeItsRetryAfterWhenTheOtherIsDown(): void
    {
        $asked = $this->file('asked');
        $server = $this->server(['fetch' => static function (int $n) use ($asked): mixed {
            file_put_contents($asked, hrtime(true) . "\n", FILE_APPEND);
            return $n > 1 ? 'hang' : [503, ['code' => 'stopping', 'detail' => 'x'], ['Retry-After' => '2']];
        }]);
        $closed = stream_socket_server('tcp://127.0.0.1:0');
        $dead = 'http://' . stream_socket_get_name($closed, false);
        fclose($closed);
        $this->worker("$server->url,$dead", static fn () => null);
        $times = static fn () => \count($all = file($asked)) >= 2 ? array_map('intval', $all) : null;
        [$first, $second] = Wait::until($times, 'the second request for jobs');
        self::assertGreaterThan(1.9, ($second - $first) / 1e9);
    }

    /** @param array<string, \Closure(int, mixed): mixed> $scripts by call; each gets its number and the body */
    private function server(array $scripts, int $beatMs = 20_000, int $leaseMs = 60_000): TestServer
    {
        $first = ['lease_ms' => $leaseMs, 'beat_ms' => $beatMs];
        return new TestServer(static function (string $method, string $path, mixed $body) use ($scripts, $first) {
            static $counts = [];
            if ($method === 'DELETE') {
                return [204, ''];
            }
            $call = basename($path);
            $number = $counts[$call] = ($counts[$call] ?? 0) + 1;
            if (isset($scripts[$call])) {
                return $scripts[$call]($number, $body);
            }
            return match ($call) {
                'workers' => [201, ['id' => "w-$number"] + $first],
                'beat' => [200, ['cancel' => [], 'lost' => [], 'drain' => false]],
                'finish' => self::settled($body),
                default => 'hang',
            };
        });
    }

    private function worker(
        TestServer|string $server,
        \Closure $handler,
        int $slots = 1,
        int $graceMs = 5_000,
        int $killMs = 5_000,
    ): WorkerProcess {
        return $this->workers[] = new WorkerProcess(
            \is_string($server) ? $server : $server->url,
            new Settings('test', ['q'], $slots, graceMs: $graceMs, killMs: $killMs),
            static fn (Worker $worker) => $worker->handle('kind', $handler),
        );
    }

    private function assertLeaves(WorkerProcess $worker, TestServer $server, bool $signal = true): void
    {
        if ($signal) {
            $worker->signal(SIGTERM);
        }
        self::assertSame(0, $worker->join());
        $requests = $server->requests();
        self::assertSame(['DELETE', '/v1/workers/w-1'], [end($requests)['method'], end($requests)['path']]);
    }

    private function file(string $name): string
    {
        return $this->files[$name] ??= (string) tempnam(sys_get_temp_dir(), 'tickr');
    }

    private static function job(string $token): array
    {
        return [
            'id' => "job-$token", 'kind' => 'kind', 'queue' => 'q', 'payload' => ['a' => 1], 'attempt' => 1,
            'max_attempts' => 5, 'token' => $token, 'started_at' => '2026-11-27T00:00:00Z',
            'deadline_at' => '2026-11-27T00:05:00Z', 'timeout_ms' => 300_000,
        ];
    }

    private static function settled(array $body): array
    {
        $result = static fn (array $one) => ['token' => $one['token'], 'result' => 'settled', 'state' => 'completed'];
        return [200, ['results' => array_map($result, $body['verdicts'])]];
    }
}

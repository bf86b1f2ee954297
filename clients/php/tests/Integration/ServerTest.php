<?php

declare(strict_types=1);

namespace Tickr\Tests\Integration;

use PHPUnit\Framework\TestCase;
use Tickr\Client;
use Tickr\Context;
use Tickr\Failed;
use Tickr\Json;
use Tickr\NewJob;
use Tickr\Outbox;
use Tickr\Problem;
use Tickr\RawJson;
use Tickr\Rejected;
use Tickr\Released;
use Tickr\Snoozed;
use Tickr\Tests\Support\Wait;
use Tickr\Tests\Support\WorkerProcess;
use Tickr\Worker;
use Tickr\Worker\Settings;

/** The library against a real tickr at TICKR_URL. */
final class ServerTest extends TestCase
{
    private Client $client;
    private string $kind;
    /** @var list<WorkerProcess> */
    private array $workers = [];

    protected function setUp(): void
    {
        if (!getenv('TICKR_URL')) {
            self::markTestSkipped('TICKR_URL is not set, so there is no server to test with');
        }
        $this->client = new Client();
        $this->kind = 'php-' . bin2hex(random_bytes(4));
        $declaration = ['queue' => $this->kind, 'retry' => ['base_ms' => 100]];
        $this->client->call('PUT', "/v1/kinds/$this->kind", Json::encode($declaration));
    }

    protected function tearDown(): void
    {
        $this->workers = [];
        if (isset($this->client)) {
            $this->client->call('DELETE', "/v1/kinds/$this->kind");
        }
    }

    public function testAJobRunsAndEveryDigitSurvives(): void
    {
        $this->worker(static fn ($payload, Context $context) => $context->attempt->payloadJson);
        $text = '{"n":18446744073709551617,"d":0.1000000000000000055511151231257827,'
            . '"e":{},"l":[],"f":1.0,"s":"ü\u0001"}';
        $job = $this->enqueue(new RawJson($text));
        self::assertSame('completed', $this->client->wait($job, 10)->state);
        $answer = $this->client->call('GET', "/v1/jobs/$job/result")->body;
        self::assertSame($text, Json::members($answer)['result']);
        self::assertNull($this->client->job('019ab2c3-d4e5-7f60-a1b2-c3d4e5f60718'));
    }

    public function testEveryVerdictArrives(): void
    {
        $this->worker(static function (array $payload, Context $context): mixed {
            $attempt = $context->attempt->attempt;
            return match ($payload['do']) {
                'fail' => throw new Failed('boo', 50),
                'throw' => throw new \DomainException('thrown'),
                'reject' => throw new Rejected('never'),
                'snooze' => file_exists($payload['file'])
                    ? ['attempt' => $attempt]
                    : (touch($payload['file']) ? throw new Snoozed(50, 'not yet') : null),
                'release' => file_exists($payload['file'])
                    ? ['attempt' => $attempt]
                    : (touch($payload['file']) ? throw new Released() : null),
            };
        }, slots: 2);
        $file = sys_get_temp_dir() . "/$this->kind";
        $jobs = [
            'fail' => ['failed', 'boo', null], 'throw' => ['failed', 'DomainException: thrown', null],
            'reject' => ['failed', 'never', null], 'snooze' => ['completed', null, ['attempt' => 1]],
            'release' => ['completed', null, ['attempt' => 1]],
        ];
        foreach ($jobs as $do => $expected) {
            $payload = ['do' => $do, 'file' => "$file-$do"];
            $ids[$do] = $this->enqueue($payload, ['max_attempts' => 2]);
        }
        foreach ($jobs as $do => $expected) {
            $result = $this->client->wait($ids[$do], 10);
            self::assertSame($expected, [$result->state, $result->lastError, $result->result], $do);
            @unlink("$file-$do");
        }
        $attempts = array_column($this->client->job($ids['reject'])['attempts'], 'verdict');
        self::assertSame(['rejected'], $attempts);
        $attempts = array_column($this->client->job($ids['snooze'])['attempts'], 'verdict');
        self::assertSame(['snoozed', 'succeeded'], $attempts);
    }

    public function testJobsFollowASuccessWithTheirOptionsAndExistExactlyIfItCounts(): void
    {
        $kind = $this->kind;
        $this->worker(static function (array $payload, Context $context) use ($kind): string {
            $attempt = $context->attempt->attempt;
            if ($payload['do'] === 'refuse') {
                $context->then("$kind-missing");
            }
            $options = ['delay_ms' => 3_600_000, 'priority' => 1, 'max_attempts' => 2, 'queue' => "$kind-one"];
            $context->then($kind, ['row' => $attempt * 10], $options);
            $context->then($kind, ['row' => $attempt * 10 + 1], [
                'execute_at' => new \DateTimeImmutable('+1 hour'), 'expires_in_ms' => 7_200_000,
                'timeout_ms' => 30_000, 'order_key' => $kind, 'on_failure' => 'skip', 'limit_key' => $kind,
                'retry' => ['delays_ms' => [100]], 'queue' => "$kind-two", 'in_batch' => true, 'tags' => ['a', 'b'],
            ]);
            return $payload['do'] === 'once' && $attempt === 1 ? throw new Failed('once', 1) : 'sent';
        });
        $followers = function (): array {
            $found = [];
            foreach (['one', 'two'] as $part) {
                $page = $this->client->call('GET', "/v1/jobs?q=queue:$this->kind-$part")->json();
                array_push($found, ...array_map($this->client->job(...), array_column($page['data'], 'id')));
            }
            return $found;
        };
        $refused = $this->client->wait($this->enqueue(['do' => 'refuse'], ['max_attempts' => 1]), 10);
        self::assertSame('failed', $refused->state);
        self::assertStringContainsString('follow_ups/0/kind', (string) $refused->lastError);
        self::assertSame([], $followers());
        self::assertSame('completed', $this->client->wait($this->enqueue(['do' => 'once']), 10)->state);
        $made = $followers();
        self::assertSame([['row' => 20], ['row' => 21]], array_column($made, 'payload'));
        self::assertSame([1, 2], [$made[0]['priority'], $made[0]['max_attempts']]);
        self::assertSame([$kind, $kind, 30_000, ['a', 'b']], [
            $made[1]['order_key'], $made[1]['limit_key'], $made[1]['timeout_ms'], $made[1]['tags'],
        ]);
    }

    public function testWithAKeyOfTheScopeWorkAloneNoJobFollowsAndTheErrorSaysSo(): void
    {
        if (!getenv('TICKR_TOKEN')) {
            self::markTestSkipped('TICKR_TOKEN is not set: it has the scope admin');
        }
        $key = function (string $scope): string {
            $path = "/v1/api-keys/$this->kind-$scope";
            return $this->client->call('PUT', $path, Json::encode(['scope' => $scope]))->json()['token'];
        };
        [$work, $enqueue] = [$key('work'), $key('enqueue')];
        $ends = [];
        foreach ([null, new Client(token: $enqueue)] as $client) {
            $worker = new WorkerProcess(
                getenv('TICKR_URL'),
                new Settings($this->kind, [$this->kind], 1, 10_000),
                function (Worker $worker) use ($client): void {
                    $worker->handle($this->kind, function ($payload, Context $context): void {
                        $context->then($this->kind, [], ['queue' => "$this->kind-next"]);
                    });
                    $client === null || $worker->enqueueWith($client);
                },
                $work,
            );
            $ends[] = $this->client->wait($this->enqueue([], ['max_attempts' => 1]), 10);
            $worker->signal(SIGTERM);
            $worker->join();
        }
        self::assertSame(['failed', 'completed'], array_column($ends, 'state'));
        $error = '/the server refused the verdict of the handler: follow_ups\S* .*scope/';
        self::assertMatchesRegularExpression($error, (string) $ends[0]->lastError);
    }

    public function testACancelReachesTheHandler(): void
    {
        $this->worker(static function ($payload, Context $context): void {
            $context->progress(25, 'asleep');
            $context->sleep(60_000);
        });
        $job = $this->enqueue();
        Wait::until(fn () => ($this->client->job($job)['progress']['note'] ?? '') === 'asleep', 'the progress');
        self::assertFalse($this->client->cancel($job));
        self::assertSame('cancelled', $this->client->wait($job, 10)->state);
        try {
            $this->client->cancel($job);
            self::fail('a problem was expected');
        } catch (Problem $problem) {
            self::assertSame('wrong_state', $problem->code);
        }
    }

    public function testAnAttemptBeginsWithTheCheckpointOfTheOneBefore(): void
    {
        $this->worker(static function ($payload, Context $context): array {
            if ($context->attempt->attempt === 1) {
                $context->checkpoint(['row' => 7]);
                throw new \RuntimeException('broken');
            }
            return ['began_with' => $context->lastCheckpoint()];
        });
        $result = $this->client->wait($this->enqueue(), 10);
        self::assertSame(['began_with' => ['row' => 7]], $result->result);
    }

    public function testTheNewestLinesOfTheLogAreKept(): void
    {
        $this->worker(static function ($payload, Context $context): void {
            for ($i = 0; $i < 2000; $i++) {
                $context->log("line $i is the one that says ü");
            }
        });
        $job = $this->enqueue();
        self::assertSame('completed', $this->client->wait($job, 10)->state);
        $log = $this->client->call('GET', "/v1/jobs/$job/attempts/1/log")->body;
        self::assertStringContainsString('line 1999 is the one that says ü', $log);
        self::assertStringNotContainsString('line 1000 ', $log);
    }

    public function testABlockedHandlerKeepsItsLeaseAndADeadlineEndsOne(): void
    {
        $this->worker(static fn (array $payload) => sleep($payload['s']), slots: 2, killMs: 500);
        $long = $this->enqueue(['s' => 12]);
        $over = $this->enqueue(['s' => 60], ['timeout_ms' => 1000, 'max_attempts' => 1]);
        $result = $this->client->wait($over, 8);
        self::assertSame('failed', $result->state);
        self::assertSame('the time of the attempt is over, and its process was killed', $result->lastError);
        self::assertSame('completed', $this->client->wait($long, 20)->state);
        self::assertCount(1, $this->client->job($long)['attempts']);
    }

    public function testSigtermReleasesWhatDoesNotFinish(): void
    {
        $worker = $this->worker(static function ($payload, Context $context): void {
            $context->progress(1);
            sleep(60);
        }, graceMs: 300);
        $job = $this->enqueue();
        Wait::until(fn () => $this->client->job($job)['progress'] ?? null, 'the handler');
        $worker->signal(SIGTERM);
        self::assertSame(0, $worker->join(10));
        $view = $this->client->job($job);
        self::assertSame(['waiting', 0], [$view['state'], $view['attempt']]);
        foreach ($this->client->call('GET', '/v1/runners')->json()['data'] as $runner) {
            self::assertFalse(str_starts_with($runner['id'], $this->kind) && $runner['state'] !== 'stopped');
        }
    }

    public function testADrainedWorkerGetsNothing(): void
    {
        $this->worker(static fn () => 'done', leaseMs: 10_000);
        $id = Wait::until(function () {
            foreach ($this->client->call('GET', '/v1/runners')->json()['data'] as $runner) {
                if (str_starts_with($runner['id'], $this->kind)) {
                    return $runner['id'];
                }
            }
        }, 'the registration');
        $this->client->call('POST', '/v1/runners/' . rawurlencode($id) . '/drain', '{}');
        $job = $this->enqueue();
        self::assertFalse($this->client->wait($job, 2)->hasEnded());
        $this->client->call('POST', '/v1/runners/' . rawurlencode($id) . '/resume', '{}');
        self::assertSame('completed', $this->client->wait($job, 10)->state);
    }

    public function testManyJobsAndABatch(): void
    {
        $this->worker(static fn (array $payload) => $payload['i'] ?? null, slots: 3);
        $jobs = array_map(fn (int $i) => new NewJob($this->kind, ['i' => $i]), range(1, 60));
        $ids = array_map(static fn ($one) => $one->id, $this->client->enqueueMany($jobs));
        $batch = $this->client->createBatch([
            'name' => 'all', 'jobs' => [new NewJob($this->kind, ['i' => 0])], 'close' => true,
            'on_success' => new NewJob($this->kind, ['i' => 99]),
        ]);
        self::assertSame(range(1, 60), array_map(fn ($id) => $this->client->wait($id, 20)->result, $ids));
        self::assertCount(1, $batch['jobs']);
        Wait::until(
            fn () => $this->client->call('GET', "/v1/batches/{$batch['id']}")->json()['state'] === 'succeeded',
            'the end of the batch',
        );
    }

    public function testAUniqueKeyAndAnIdempotencyKeyMakeOneJob(): void
    {
        $first = $this->client->enqueue($this->kind, [], ['unique_key' => 'u']);
        $second = $this->client->enqueue($this->kind, [], ['unique_key' => 'u']);
        self::assertSame([$first->id, false, true], [$second->id, $first->existing, $second->existing]);
        $key = "key-$this->kind";
        $ids = array_map(fn () => $this->client->enqueue($this->kind, idempotencyKey: $key)->id, [1, 2]);
        self::assertSame($ids[0], $ids[1]);
    }

    public function testAJobExistsExactlyIfTheTransactionWasCommitted(): void
    {
        $pdo = self::pdo();
        $outbox = new Outbox($pdo);
        $pdo->beginTransaction();
        $lost = $outbox->enqueue($this->kind, ['n' => 1]);
        $pdo->rollBack();
        $pdo->beginTransaction();
        $made = $outbox->enqueue($this->kind, ['ü' => 2], ['queue' => $this->kind, 'priority' => 2, 'delay_ms' => 50]);
        $pdo->commit();
        $this->client->nudge();
        $this->worker(static fn (array $payload) => $payload);
        self::assertSame(['ü' => 2], Wait::until(
            fn () => $this->client->job($made) === null ? null : $this->client->wait($made, 5)->result,
            'the job of the outbox',
        ));
        self::assertSame(2, $this->client->job($made)['priority']);
        self::assertNull($this->client->job($lost));
    }

    /** A connection to the database of tickr, from TICKR_MYSQL_URL. */
    public static function pdo(): \PDO
    {
        $url = getenv('TICKR_MYSQL_URL');
        if (!$url || !\extension_loaded('pdo_mysql')) {
            self::markTestSkipped('TICKR_MYSQL_URL is not set, or the extension pdo_mysql is missing');
        }
        $parts = parse_url($url);
        parse_str($parts['query'] ?? '', $query);
        $where = isset($query['socket'])
            ? "unix_socket={$query['socket']}"
            : "host={$parts['host']};port=" . ($parts['port'] ?? 3306);
        return new \PDO(
            "mysql:$where;charset=utf8mb4;dbname=" . trim($parts['path'], '/'),
            rawurldecode($parts['user'] ?? ''),
            rawurldecode($parts['pass'] ?? ''),
        );
    }

    private function enqueue(mixed $payload = [], array $options = []): string
    {
        return $this->client->enqueue($this->kind, $payload, $options + ['queue' => $this->kind])->id;
    }

    private function worker(
        \Closure $handler,
        int $slots = 1,
        int $graceMs = 2_000,
        int $killMs = 5_000,
        int $leaseMs = 10_000,
    ): WorkerProcess {
        return $this->workers[] = new WorkerProcess(
            getenv('TICKR_URL'),
            new Settings($this->kind, [$this->kind], $slots, $leaseMs, $graceMs, $killMs),
            fn (Worker $worker) => $worker->handle($this->kind, $handler),
        );
    }
}

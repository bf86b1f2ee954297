<?php

declare(strict_types=1);

namespace Tickr\Tests\Integration;

use PHPUnit\Framework\TestCase;
use Tickr\Client;
use Tickr\Tests\App;
use Tickr\Tests\Support\Wait;

/**
 * Ordinary job classes of Laravel on a real tickr at TICKR_URL.
 *
 * The application stands in tests/laravel. Its workers are the commands of the framework and of this library.
 */
final class LaravelTest extends TestCase
{
    private const APP = __DIR__ . '/../laravel';

    private static string $dir = '';
    private static mixed $app = null;
    private static string $kind = '';
    private static string $queue = '';
    private static ?\PDO $sqlite = null;
    /** @var list<array{resource, int}> */
    private array $workers = [];

    public static function setUpBeforeClass(): void
    {
        if (!getenv('TICKR_URL')) {
            self::markTestSkipped('TICKR_URL is not set, so there is no server to test with');
        }
        if (!class_exists(\Illuminate\Foundation\Application::class)) {
            if (stream_resolve_include_path('Illuminate/autoload.php') === false) {
                self::markTestSkipped('Laravel is not installed');
            }
            require_once 'Illuminate/autoload.php';
        }
        if (!\extension_loaded('pdo_sqlite')) {
            self::markTestSkipped('the extension pdo_sqlite is missing');
        }
        self::$dir = sys_get_temp_dir() . '/tickr-laravel-' . bin2hex(random_bytes(4));
        mkdir(self::$dir . '/framework', recursive: true);
        self::$kind = 'laravel-' . bin2hex(random_bytes(4));
        putenv('TICKR_TEST_DIR=' . self::$dir);
        putenv('TICKR_TEST_KIND=' . self::$kind);
        putenv('TICKR_TEST_QUEUE=' . self::$kind);
        touch(self::$dir . '/test.sqlite');
        self::$sqlite = new \PDO('sqlite:' . self::$dir . '/test.sqlite');
        self::$sqlite->exec('CREATE TABLE failed_jobs (id INTEGER PRIMARY KEY, uuid TEXT, connection TEXT, queue TEXT,'
            . ' payload TEXT, exception TEXT, failed_at TEXT)');
        self::$sqlite->exec('CREATE TABLE job_batches (id TEXT PRIMARY KEY, name TEXT, total_jobs INTEGER,'
            . ' pending_jobs INTEGER, failed_jobs INTEGER, failed_job_ids TEXT, options TEXT, cancelled_at INTEGER,'
            . ' created_at INTEGER, finished_at INTEGER)');
        self::$app = require self::APP . '/bootstrap/app.php';
        self::$app->make(\Illuminate\Contracts\Console\Kernel::class)->bootstrap();
        // The kernel takes over the handling of errors, which belongs to PHPUnit here.
        restore_error_handler();
        restore_exception_handler();
        error_reporting(E_ALL & ~E_DEPRECATED);
        self::artisan('tickr:declare');
    }

    public static function tearDownAfterClass(): void
    {
        if (self::$kind !== '') {
            (new Client())->call('DELETE', '/v1/kinds/' . self::$kind);
            self::$sqlite = null;
            exec('rm -rf ' . escapeshellarg(self::$dir));
        }
    }

    protected function setUp(): void
    {
        @unlink(self::$dir . '/diary');
        self::$sqlite->exec('DELETE FROM failed_jobs');
        self::$queue = 'laravel-' . bin2hex(random_bytes(4));
        putenv('TICKR_TEST_QUEUE=' . self::$queue);
        foreach (['tickr', 'outbox'] as $connection) {
            config(["queue.connections.$connection.queue" => self::$queue]);
        }
        // These have the queue of the former test.
        $holders = [\Illuminate\Bus\Dispatcher::class, \Illuminate\Bus\BatchRepository::class,
            \Illuminate\Bus\DatabaseBatchRepository::class, 'queue'];
        array_map(self::$app->forgetInstance(...), $holders);
        \Illuminate\Support\Facades\Bus::clearResolvedInstances();
        exec('rm -rf ' . escapeshellarg(self::$dir . '/cache'));
    }

    protected function tearDown(): void
    {
        foreach ($this->workers as [$process, $pid]) {
            // The command runs in the process itself, without a shell between.
            @posix_kill($pid, SIGKILL);
            proc_close($process);
        }
        $this->workers = [];
    }

    /** @return array<string, array{string}> */
    public function workers(): array
    {
        return ['tickr:work' => ['tickr:work --slots=2 --lease=10'], 'queue:work' => ['queue:work tickr --sleep=0']];
    }

    /** @dataProvider workers */
    public function testJobsRunAreRetriedReleasedAndFail(string $command): void
    {
        App\Plain::dispatch('plain');
        App\Plain::dispatch('later')->delay(1);
        App\Fails::dispatch('fails');
        App\Releases::dispatch('releases');
        App\FailsItself::dispatch('itself');
        dispatch(App\noting('ran closure'));
        App\Encrypted::dispatch('secret');
        self::assertSame(7, \Illuminate\Support\Facades\Queue::size());
        $this->work($command);
        $this->awaitDiary([
            'ran plain attempt 1', 'ran later attempt 1', 'ran closure', 'ran secret',
            'tried fails attempt 1', 'tried fails attempt 2', 'tried fails attempt 3', 'failed fails: no luck',
            'released releases attempt 1', 'released releases attempt 2', 'released releases attempt 3',
            'failed itself: not possible',
        ]);
        $this->awaitFailed(['App\Fails' => 'no luck', 'App\FailsItself' => 'not possible']);
        Wait::until(static fn () => \Illuminate\Support\Facades\Queue::size() === 0, 'an empty queue');
        $letters = (new Client())->call('GET', '/v1/dead-letters?q=' . rawurlencode('queue:' . self::$queue))->body;
        self::assertStringContainsString('RuntimeException: no luck', $letters);
        self::assertStringContainsString('class:Tickr.Tests.App.Fails', $letters);
    }

    /** @dataProvider workers */
    public function testATimeLimitEndsTheProcessAndTheJobIsTriedAgain(string $command): void
    {
        App\Slow::dispatch('slow');
        App\SlowFailsOnTimeout::dispatch('fails');
        if (str_starts_with($command, 'queue:work')) {
            // A supervisor starts a killed worker of Laravel again.
            foreach ([1, 2] as $kill) {
                $worker = $this->work($command);
                Wait::until(static fn () => !proc_get_status($worker)['running'], 'the killed worker', 10);
            }
        }
        $this->work($command);
        $this->awaitDiary(['began slow attempt 1', 'failed slow: ', 'began fails attempt 1', 'failed fails: ']);
        $text = 'has been attempted too many times or run too long';
        $this->awaitFailed(['App\Slow' => $text, 'App\SlowFailsOnTimeout' => $text]);
    }

    /** @dataProvider workers */
    public function testChainsBatchesAndUniqueJobs(string $command): void
    {
        \Illuminate\Support\Facades\Bus::chain([
            new App\Plain('one'), new App\Plain('two'), new App\Plain('three'),
        ])->dispatch();
        \Illuminate\Support\Facades\Bus::chain([
            new App\FailsItself('breaks'), new App\Plain('never'),
        ])->catch(App\noting('caught'))->dispatch();
        $batch = \Illuminate\Support\Facades\Bus::batch([
            new App\Plain('b1'), new App\Plain('b2'), [new App\Plain('b3'), new App\Plain('b4')],
        ])->then(App\noting('then'))->finally(App\noting('finally'))->dispatch();
        $broken = \Illuminate\Support\Facades\Bus::batch([new App\FailsItself('b5')])
            ->catch(App\noting('catch'))->dispatch();
        foreach (['u', 'u', 'v'] as $word) {
            App\Unique::dispatch($word);
        }
        // SQLite refuses one of two transactions that write to the batches at the same time.
        $this->work(str_replace('--slots=2', '--slots=1', $command));
        $this->awaitDiary([
            'ran one attempt 1', 'ran two attempt 1', 'ran three attempt 1', 'failed breaks: not possible', 'caught',
            'ran b1 attempt 1', 'ran b2 attempt 1', 'ran b3 attempt 1', 'ran b4 attempt 1', 'then', 'finally',
            'failed b5: not possible', 'catch', 'ran u', 'ran v',
        ]);
        Wait::until(static fn () => $batch->fresh()->finished(), 'the end of the batch');
        self::assertSame([4, 0], [$batch->fresh()->totalJobs, $batch->fresh()->failedJobs]);
        self::assertTrue($broken->fresh()->hasFailures());
        Wait::until(static fn () => \Illuminate\Support\Facades\Queue::size() === 0, 'an empty queue');
        App\Unique::dispatch('u');
        Wait::until(fn () => substr_count($this->diary(), "ran u\n") === 2, 'the unique job again');
        $order = array_values(array_intersect(explode("\n", $this->diary()), [
            'ran one attempt 1', 'ran two attempt 1', 'ran three attempt 1',
        ]));
        self::assertSame(['ran one attempt 1', 'ran two attempt 1', 'ran three attempt 1'], $order);
    }

    public function testALostLastAttemptCallsTheFailedMethod(): void
    {
        App\Dies::dispatch('dies');
        $this->work('tickr:work --slots=1');
        $failed = 'failed dies: Tickr\Tests\App\Dies has been attempted too many times';
        $this->awaitDiary(['dies dies attempt 1', $failed]);
        self::assertSame(1, substr_count($this->diary(), 'dies dies'));
    }

    public function testAJobThatAnOperatorCancelsIsStopped(): void
    {
        App\Blocks::dispatch('cancelled');
        $this->work('tickr:work --slots=1 --lease=10 --kill=1');
        $this->awaitDiary(['began cancelled']);
        $client = new Client();
        $path = '/v1/jobs?limit=1&q=' . rawurlencode('queue:' . self::$queue);
        $id = $client->call('GET', $path)->json()['data'][0]['id'];
        self::assertFalse($client->cancel($id));
        self::assertSame('cancelled', $client->wait($id, 12)->state);
        App\Plain::dispatch('next');
        $this->awaitDiary(['ran next attempt 1']);
        self::assertStringNotContainsString('ended cancelled', $this->diary());
    }

    public function testMiddlewareMaxExceptionsAndRetryUntil(): void
    {
        App\Alone::dispatch('a');
        App\Alone::dispatch('b');
        App\Tolerates::dispatch('t');
        App\RetriesUntil::dispatch('r');
        $this->work('tickr:work --slots=3');
        $this->awaitDiary(['out a', 'out b', 'tried t attempt 2', 'failed t: no luck', 'failed r: ']);
        $words = array_values(array_filter(
            explode("\n", $this->diary()),
            static fn (string $line) => preg_match('/^(in|out) [ab]$/', $line) === 1,
        ));
        self::assertSame([$words[0][3], $words[2][3]], [$words[1][4], $words[3][4]], 'one after the other');
        self::assertSame(2, substr_count($this->diary(), 'tried t'));
        self::assertGreaterThan(1, substr_count($this->diary(), 'tried r'));
    }

    public function testAQueuedJobCommitsWithItsTransaction(): void
    {
        $db = self::$app->make('db');
        try {
            $db->transaction(static function (): void {
                App\Plain::dispatch('rolled back')->afterCommit();
                throw new \RuntimeException('back');
            });
        } catch (\RuntimeException) {
        }
        $db->transaction(static function (): void {
            App\Plain::dispatch('committed')->afterCommit();
            self::assertSame(0, \Illuminate\Support\Facades\Queue::size());
        });
        self::assertSame(1, \Illuminate\Support\Facades\Queue::size());
        $this->work('tickr:work --slots=1');
        $this->awaitDiary(['ran committed attempt 1']);
        self::assertStringNotContainsString('rolled back', $this->diary());
    }

    public function testTheOutboxWritesInTheTransactionOfTheApplication(): void
    {
        ServerTest::pdo();
        parse_str((string) parse_url(getenv('TICKR_MYSQL_URL'), PHP_URL_QUERY), $query);
        if (!isset($query['socket'])) {
            self::markTestSkipped('TICKR_MYSQL_URL has no socket');
        }
        $db = self::$app->make('db');
        config(['database.connections.shop.unix_socket' => $query['socket']]);
        $db->connection('shop')->beginTransaction();
        App\Plain::dispatch('rolled back')->onConnection('outbox');
        $db->connection('shop')->rollBack();
        $db->connection('shop')->transaction(static function (): void {
            App\Plain::dispatch('committed')->onConnection('outbox');
            App\Plain::dispatch('later')->onConnection('outbox')->delay(1);
        });
        $this->work('tickr:work --slots=1');
        $this->awaitDiary(['ran committed attempt 1', 'ran later attempt 1']);
        self::assertStringNotContainsString('rolled back', $this->diary());
    }

    public function testAFailedJobIsRetriedByLaravelAndByTickr(): void
    {
        App\FailsItself::dispatch('twice');
        $this->work('tickr:work --slots=1');
        $this->awaitFailed(['App\FailsItself' => 'not possible']);
        $uuid = self::$sqlite->query('SELECT uuid FROM failed_jobs')->fetchColumn();
        @unlink(self::$dir . '/diary');
        self::artisan("queue:retry $uuid");
        $this->awaitDiary(['failed twice: not possible']);
        @unlink(self::$dir . '/diary');
        $jobs = (new Client())->call('GET', '/v1/jobs?limit=1&q=' . rawurlencode('queue:' . self::$queue))->json();
        $id = $jobs['data'][0]['id'];
        self::assertSame('failed', (new Client())->wait($id, 5)->state);
        (new Client())->call('POST', "/v1/jobs/$id/retry", '{}');
        $this->awaitDiary(['failed twice: not possible']);
    }

    public function testALongJobOfALaravelWorkerKeepsItsLeaseAndQueueRestartEndsBothWorkers(): void
    {
        App\Blocks::dispatch('long');
        $one = $this->work('queue:work tickr --sleep=0');
        $this->awaitDiary(['began long']);
        $two = $this->work('tickr:work --slots=1');
        $this->awaitDiary(['ended long attempt 1'], 20);
        self::assertSame(1, substr_count($this->diary(), 'began long'));
        // Neither of them has a job now.
        self::artisan('queue:restart');
        Wait::until(
            static fn () => !proc_get_status($one)['running'] && !proc_get_status($two)['running'],
            'the ends of the workers',
            15,
        );
    }

    /** @return resource */
    private function work(string $command)
    {
        $files = [1 => ['file', self::$dir . '/worker.log', 'a'], 2 => ['file', self::$dir . '/worker.log', 'a']];
        $arguments = [PHP_BINARY, self::APP . '/artisan', ...explode(' ', $command)];
        $process = proc_open($arguments, $files, $pipes);
        $this->workers[] = [$process, proc_get_status($process)['pid']];
        return $process;
    }

    private static function artisan(string $command): void
    {
        exec(PHP_BINARY . ' ' . self::APP . "/artisan $command 2>&1", $lines, $code);
        self::assertSame(0, $code, implode("\n", $lines));
    }

    private function diary(): string
    {
        return (string) @file_get_contents(self::$dir . '/diary');
    }

    /** @param list<string> $lines beginnings of lines */
    private function awaitDiary(array $lines, float $seconds = 12.0): void
    {
        try {
            Wait::until(function () use ($lines): bool {
                foreach ($lines as $line) {
                    if (!str_contains("\n" . $this->diary(), "\n$line")) {
                        return false;
                    }
                }
                return true;
            }, 'the diary', $seconds);
            self::assertNotSame([], $lines);
        } catch (\RuntimeException $late) {
            $log = @file_get_contents(self::$dir . '/worker.log') . @file_get_contents(self::$dir . '/laravel.log');
            self::fail($late->getMessage() . "\n" . $this->diary() . "\n" . substr($log, -4000));
        }
    }

    /** @param array<string, string> $expected a part of the exception by the end of the class name */
    private function awaitFailed(array $expected): void
    {
        Wait::until(static function () use ($expected): bool {
            $rows = self::$sqlite->query('SELECT payload, exception FROM failed_jobs')->fetchAll();
            foreach ($expected as $class => $exception) {
                $matching = array_filter($rows, static fn (array $row) =>
                    str_ends_with(json_decode($row['payload'], true)['displayName'], $class)
                    && str_contains($row['exception'], $exception));
                if (\count($matching) !== 1) {
                    return false;
                }
            }
            return \count($rows) === \count($expected);
        }, 'the failed jobs');
    }
}

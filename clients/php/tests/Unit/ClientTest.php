<?php

declare(strict_types=1);

namespace Tickr\Tests\Unit;

use PHPUnit\Framework\TestCase;
use Tickr\Client;
use Tickr\ConnectionFailed;
use Tickr\NewJob;
use Tickr\Problem;
use Tickr\Tests\Support\TestServer;

final class ClientTest extends TestCase
{
    private const TOKEN = 'a-secret-token-of-the-test';

    public function testARepeatedEnqueueKeepsItsKeyAndItsBody(): void
    {
        $server = new TestServer(static function () {
            static $calls = 0;
            return match (++$calls) {
                1 => 'drop',
                2 => [503, ['code' => 'stopping', 'detail' => 'x'], ['Retry-After' => '1']],
                3 => [429, ['code' => 'overloaded', 'detail' => 'x']],
                4 => [409, ['code' => 'idempotency_in_progress', 'detail' => 'x']],
                default => [201, ['id' => 'j1', 'warnings' => ['paused']]],
            };
        });
        $begun = microtime(true);
        $job = (new Client($server->url, self::TOKEN))->enqueue('echo', ['a' => 1], ['priority' => 3]);
        self::assertSame(['j1', false, ['paused']], [$job->id, $job->existing, $job->warnings]);
        self::assertGreaterThan(0.99, microtime(true) - $begun, 'Retry-After is kept');
        $requests = $server->requests();
        self::assertCount(5, $requests);
        $keys = array_map(static fn ($one) => $one['headers']['idempotency-key'], $requests);
        self::assertCount(1, array_unique($keys));
        self::assertCount(1, array_unique(array_column($requests, 'text')));
        self::assertSame('Bearer ' . self::TOKEN, $requests[0]['headers']['authorization']);
        self::assertSame('/v1/jobs', $requests[0]['path']);
    }

    public function testACancelWhoseAnswerIsLostIsRepeatedWithItsKey(): void
    {
        $server = new TestServer(static function () {
            static $calls = 0;
            return ++$calls === 1 ? 'drop' : [200, ['id' => 'j1', 'state' => 'cancelled']];
        });
        self::assertTrue((new Client($server->url))->cancel('j1'));
        $keys = array_map(static fn ($one) => $one['headers']['idempotency-key'] ?? null, $server->requests());
        self::assertCount(2, $keys);
        self::assertNotNull($keys[0]);
        self::assertSame($keys[0], $keys[1]);
    }

    public function testARefusalIsAProblemAndIsNotRepeated(): void
    {
        $document = [
            'code' => 'unique_key_taken', 'title' => 'T', 'detail' => 'D', 'status' => 409, 'holder' => 'j7',
            'errors' => [['pointer' => '/x', 'detail' => 'wrong']],
        ];
        $server = new TestServer(static fn () => [409, $document]);
        try {
            (new Client($server->url, self::TOKEN))->enqueue('echo');
            self::fail('a problem was expected');
        } catch (Problem $problem) {
            self::assertSame(['unique_key_taken', 'T', 'D', 409], [
                $problem->code, $problem->title, $problem->detail, $problem->status,
            ]);
            self::assertSame('j7', $problem->document['holder']);
            self::assertSame('unique_key_taken: D (/x wrong)', $problem->getMessage());
        }
        self::assertCount(1, $server->requests());
    }

    public function testASuccessWithoutAnIdOfAJobIsNoEnqueue(): void
    {
        $server = new TestServer(static fn () => [200, ['status' => 'fine']]);
        $client = new Client($server->url, retryFor: 0.0);
        foreach ([static fn () => $client->enqueue('echo'), static fn () => $client->enqueueMany(['echo'])] as $call) {
            try {
                $call();
                self::fail('a failure was expected');
            } catch (ConnectionFailed $failed) {
                self::assertStringContainsString('so it is none of tickr', $failed->getMessage());
            }
        }
    }

    public function testAWaitGoesToTheNextAddressWhenTheFirstIsSilent(): void
    {
        $hangs = new TestServer(static fn () => 'hang');
        $server = new TestServer(static fn () => [200, ['id' => 'j1', 'state' => 'completed', 'result' => 7]]);
        $client = new Client("$hangs->url,$server->url", retryFor: 3.0, callTimeout: 0.5);
        self::assertSame(7, $client->wait('j1', 5.0)->result);
        self::assertCount(1, $hangs->requests());
    }

    public function testAFailingCallGivesUpInItsTime(): void
    {
        $server = new TestServer(static fn () => 'drop');
        $begun = microtime(true);
        try {
            (new Client($server->url, retryFor: 1.0))->enqueue('echo');
            self::fail('a failure was expected');
        } catch (ConnectionFailed) {
            self::assertLessThan(2.0, microtime(true) - $begun);
        }
        self::assertGreaterThan(2, \count($server->requests()));
    }

    public function testAnAnswerThatAsksForNoPauseIsNotRepeatedInAHurry(): void
    {
        $busy = [503, ['code' => 'stopping', 'detail' => 'x'], ['Retry-After' => '0']];
        $server = new TestServer(static fn () => $busy);
        try {
            (new Client($server->url, retryFor: 1.0))->enqueue('echo');
            self::fail('a problem was expected');
        } catch (Problem) {
            self::assertLessThan(10, \count($server->requests()));
        }
    }

    public function testAnAnswerThatNeverComesIsGivenUp(): void
    {
        $server = new TestServer(static fn () => 'hang');
        $this->expectException(ConnectionFailed::class);
        (new Client($server->url, retryFor: 0.1, callTimeout: 0.3))->job('x');
    }

    public function testAnAddressThatHangsLeavesTimeForTheNextOne(): void
    {
        $hangs = new TestServer(static fn () => 'hang');
        $server = new TestServer(static fn () => [201, ['id' => 'j1']]);
        $begun = microtime(true);
        self::assertSame('j1', (new Client("$hangs->url,$server->url"))->enqueue('echo')->id);
        self::assertLessThan(15.0, microtime(true) - $begun);
    }

    public function testANudgeIsTriedOnceAndHoldsUpNoRequest(): void
    {
        $server = new TestServer(static fn () => 'hang');
        $begun = microtime(true);
        try {
            (new Client($server->url))->nudge();
            self::fail('a failure was expected');
        } catch (ConnectionFailed) {
            self::assertLessThan(2.0, microtime(true) - $begun);
        }
        $server = new TestServer(static fn () => [503, ['code' => 'store_unavailable', 'detail' => 'x']]);
        try {
            (new Client($server->url))->nudge();
            self::fail('a problem was expected');
        } catch (Problem) {
            self::assertCount(1, $server->requests());
        }
    }

    public function testTheNextAddressIsTriedAfterAFailure(): void
    {
        $server = new TestServer(static fn () => [201, ['id' => 'j1']]);
        $closed = stream_socket_server('tcp://127.0.0.1:0');
        $dead = 'http://' . stream_socket_get_name($closed, false);
        fclose($closed);
        $client = new Client("$dead,$server->url");
        self::assertSame('j1', $client->enqueue('echo')->id);
        self::assertSame('j1', $client->enqueue('echo')->id);
        self::assertCount(2, $server->requests());
    }

    public function testAnAddressIsNotCalledBeforeItsRetryAfterWhenTheOtherIsDown(): void
    {
        $server = new TestServer(static function () {
            static $calls = 0;
            return ++$calls > 1
                ? [201, ['id' => 'j1']] : [503, ['code' => 'stopping', 'detail' => 'x'], ['Retry-After' => '2']];
        });
        $closed = stream_socket_server('tcp://127.0.0.1:0');
        $dead = 'http://' . stream_socket_get_name($closed, false);
        fclose($closed);
        $begun = microtime(true);
        self::assertSame('j1', (new Client("$server->url,$dead"))->enqueue('echo')->id);
        self::assertGreaterThan(1.9, microtime(true) - $begun);
        self::assertCount(2, $server->requests());
    }

    public function testAServerWithTlsIsTrustedOnlyWithItsCertificate(): void
    {
        $pem = (string) tempnam(sys_get_temp_dir(), 'tickr');
        $command = 'openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost'
            . ' -addext subjectAltName=DNS:localhost -keyout ' . escapeshellarg("$pem.key")
            . ' -out ' . escapeshellarg($pem) . ' 2>/dev/null';
        exec($command, $lines, $code);
        if ($code !== 0) {
            self::markTestSkipped('the program openssl is not installed');
        }
        file_put_contents($pem, file_get_contents("$pem.key"), FILE_APPEND);
        try {
            $server = new TestServer(static fn () => [201, ['id' => 'j1']], $pem);
            $url = str_replace('http://127.0.0.1', 'https://localhost', $server->url);
            $client = new Client($url, retryFor: 0.0);
            try {
                $client->enqueue('echo');
                self::fail('a failure was expected');
            } catch (ConnectionFailed $failed) {
                self::assertStringContainsString('TLS', $failed->getMessage());
            }
            putenv("SSL_CERT_FILE=$pem");
            self::assertSame('j1', $client->enqueue('echo')->id);
            self::assertSame('j1', $client->enqueue('echo')->id);
        } finally {
            putenv('SSL_CERT_FILE');
            array_map('unlink', [$pem, "$pem.key"]);
        }
    }

    public function testAKeptConnectionThatTheServerClosedIsNoFailure(): void
    {
        $server = new TestServer(static fn () => [201, ['id' => 'j1'], ['Connection' => 'keep-alive']]);
        $client = new Client($server->url, retryFor: 0.0);
        for ($i = 0; $i < 3; $i++) {
            self::assertSame('j1', $client->enqueue('echo')->id);
        }
        self::assertCount(3, $server->requests());
    }

    public function testManyJobsAreOneRequest(): void
    {
        $server = new TestServer(static fn () => [201, ['jobs' => [['id' => 'a'], ['id' => 'b', 'existing' => true]]]]);
        $jobs = [new NewJob('x', ['i' => 1]), new NewJob('y', [], ['queue' => 'q'])];
        $answer = (new Client($server->url))->enqueueMany($jobs);
        self::assertSame(['a', 'b'], [$answer[0]->id, $answer[1]->id]);
        self::assertTrue($answer[1]->existing);
        self::assertSame(
            '{"jobs":[{"kind":"x","payload":{"i":1}},{"kind":"y","payload":{},"queue":"q"}]}',
            $server->requests()[0]['text'],
        );
    }

    public function testNoDumpAndNoExceptionShowsTheToken(): void
    {
        $server = new TestServer(static fn () => [401, ['code' => 'unauthorized', 'title' => 't', 'detail' => 'd']]);
        $client = new Client($server->url, self::TOKEN, retryFor: 0.0);
        try {
            $client->enqueue('echo');
            self::fail('a problem was expected');
        } catch (Problem $problem) {
            ob_start();
            var_dump($client, $client->channel());
            print_r($client);
            $shown = ob_get_clean() . $problem . var_export($client, true) . json_encode($client);
            self::assertStringNotContainsString(self::TOKEN, $shown);
        }
        $this->expectException(\LogicException::class);
        serialize($client);
    }
}

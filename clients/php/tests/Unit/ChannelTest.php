<?php

declare(strict_types=1);

namespace Tickr\Tests\Unit;

use PHPUnit\Framework\TestCase;
use Tickr\Http\Addresses;
use Tickr\Http\Channel;
use Tickr\Http\Request;
use Tickr\Http\Response;
use Tickr\Tests\Support\Wait;

/** A connection whose calls an exception of the program cuts off, as a signal handler may throw one. */
final class ChannelTest extends TestCase
{
    private const TOKEN = 'a-secret-token-of-the-test';

    /** @var resource */
    private $listener;

    protected function setUp(): void
    {
        $this->listener = stream_socket_server('tcp://127.0.0.1:0');
    }

    public function testACallThatAnExceptionCutsOffLeavesItsAnswerToNoOther(): void
    {
        $channel = $this->channel('http');
        $this->cutOff($channel);
        $first = stream_socket_accept($this->listener, 5.0);
        $channel->begin(new Request('POST', '/v1/jobs', '{"kind":"second"}'));
        $this->answer($first, 'first');
        $second = null;
        $response = Wait::until(function () use ($channel, &$second): ?Response {
            if ($second === null && ($accepted = @stream_socket_accept($this->listener, 0.0)) !== false) {
                $second = $accepted;
                $this->answer($second, 'second');
            }
            return $channel->advance();
        }, 'the answer');
        self::assertSame(['id' => 'second'], $response->json());
    }

    public function testACallThatAnExceptionCutsOffBeforeTlsIsUpLeavesNoConnectionForTheToken(): void
    {
        $channel = $this->channel('https');
        $this->cutOff($channel);
        $peers = [stream_socket_accept($this->listener, 5.0)];
        $channel->begin(new Request('POST', '/v1/jobs', '{"kind":"second"}'));
        $channel->advance();
        $channel->close();
        while (($peer = @stream_socket_accept($this->listener, 0.0)) !== false) {
            $peers[] = $peer;
        }
        $got = implode('', array_map('stream_get_contents', $peers));
        self::assertNotSame('', $got, 'the handshake has begun');
        self::assertStringNotContainsString(self::TOKEN, $got);
    }

    private function channel(string $scheme): Channel
    {
        $url = "$scheme://" . stream_socket_get_name($this->listener, false);
        return new Channel(new Addresses($url), static fn (): string => self::TOKEN);
    }

    /** Call a server that does not answer, until an exception of a signal handler ends the call. */
    private function cutOff(Channel $channel): void
    {
        $async = pcntl_async_signals(true);
        pcntl_signal(SIGALRM, static fn () => throw new \DomainException('the time of the program is over'));
        pcntl_alarm(1);
        try {
            $channel->call(new Request('POST', '/v1/jobs', '{"kind":"first"}'));
            self::fail('an exception was expected');
        } catch (\DomainException) {
        } finally {
            pcntl_alarm(0);
            pcntl_signal(SIGALRM, SIG_DFL);
            pcntl_async_signals($async);
        }
    }

    /** @param resource $peer */
    private function answer($peer, string $id): void
    {
        $body = json_encode(['id' => $id]);
        // The client may have closed this connection.
        @fwrite($peer, "HTTP/1.1 201 Created\r\nContent-Length: " . \strlen($body) . "\r\n\r\n$body");
    }
}

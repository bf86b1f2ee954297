<?php

declare(strict_types=1);

namespace Tickr\Tests\Support;

use Tickr\Http\Channel;
use Tickr\Worker\Child;

/**
 * A server in a process of its own that answers as a script says, also badly.
 *
 * The script gets the method, the path, the decoded body and the headers, and returns `[status, body]`,
 * `[status, body, headers]`, 'drop' (close the connection without an answer), 'hang' (no answer as long as the
 * connection lasts), or a function that is asked again until it returns one of them; meanwhile the server answers other
 * requests.
 */
final class TestServer
{
    public readonly string $url;
    private readonly int $pid;
    private readonly string $journal;
    private readonly int $owner;

    /**
     * @param \Closure(string, string, mixed, array<string, string>): mixed $script
     * @param string|null $pem file with certificate and key, to speak TLS
     */
    public function __construct(\Closure $script, ?string $pem = null)
    {
        $this->owner = (int) getmypid();
        $listener = stream_socket_server('tcp://127.0.0.1:0');
        $this->url = 'http://' . stream_socket_get_name($listener, false);
        $this->journal = (string) tempnam(sys_get_temp_dir(), 'tickr');
        $pid = pcntl_fork();
        if ($pid === 0) {
            pcntl_signal(SIGTERM, SIG_DFL);
            try {
                $this->serve($listener, $script, $pem);
            } catch (\Throwable $error) {
                fwrite(STDERR, (string) $error);
            }
            Child::vanish();
        }
        fclose($listener);
        $this->pid = $pid;
    }

    public function __destruct()
    {
        if ($this->owner !== getmypid()) {
            return;
        }
        posix_kill($this->pid, SIGKILL);
        pcntl_waitpid($this->pid, $status);
        @unlink($this->journal);
    }

    /** @return list<array{method: string, path: string, body: mixed, text: string, headers: array<string, string>}> */
    public function requests(string $pathEnd = ''): array
    {
        $lines = array_filter(explode("\n", (string) file_get_contents($this->journal)));
        // The server may be writing its last line.
        $all = array_filter(array_map(static fn (string $line) => json_decode($line, true), $lines));
        return array_values(array_filter($all, static fn (array $one) => str_ends_with($one['path'], $pathEnd)));
    }

    /**
     * Wait until the requests are as they should be.
     *
     * @param \Closure(list<array<string, mixed>>): bool $enough
     */
    public function await(string $pathEnd, \Closure $enough, float $seconds = 10.0): array
    {
        return Wait::until(
            fn () => $enough($this->requests($pathEnd)) ? $this->requests($pathEnd) : null,
            "requests at $pathEnd",
            $seconds,
        );
    }

    /** @param resource $listener */
    private function serve($listener, \Closure $script, ?string $pem): never
    {
        /** @var array<int, array{resource, string}> $clients */
        $clients = [];
        /** @var array<int, \Closure(): mixed> $waiting */
        $waiting = [];
        while (true) {
            foreach ($waiting as $id => $ask) {
                $answer = $ask();
                if ($answer !== null) {
                    unset($waiting[$id]);
                    self::answer($clients, $id, $answer);
                }
            }
            $read = [$listener, ...array_map(static fn (array $client) => $client[0], array_values($clients))];
            $write = [];
            Channel::select($read, $write, $waiting === [] ? 60.0 : 0.02);
            foreach ($read as $stream) {
                if ($stream === $listener) {
                    $client = stream_socket_accept($listener);
                    if ($pem !== null) {
                        stream_context_set_option($client, 'ssl', 'local_cert', $pem);
                        if (@stream_socket_enable_crypto($client, true, STREAM_CRYPTO_METHOD_TLS_SERVER) !== true) {
                            fclose($client);
                            continue;
                        }
                    }
                    $clients[(int) $client] = [$client, ''];
                    continue;
                }
                $id = (int) $stream;
                $chunk = fread($stream, 1 << 20);
                if ($chunk === '' || $chunk === false) {
                    fclose($stream);
                    unset($clients[$id], $waiting[$id]);
                    continue;
                }
                $clients[$id][1] .= $chunk;
                $request = self::request($clients[$id][1]);
                if ($request === null) {
                    continue;
                }
                $clients[$id][1] = '';
                file_put_contents($this->journal, json_encode($request) . "\n", FILE_APPEND);
                $answer = $script($request['method'], $request['path'], $request['body'], $request['headers']);
                if ($answer instanceof \Closure) {
                    $waiting[$id] = $answer;
                } else {
                    self::answer($clients, $id, $answer);
                }
            }
        }
    }

    /** @param array<int, array{resource, string}> $clients */
    private static function answer(array &$clients, int $id, mixed $answer): void
    {
        if ($answer === 'hang') {
            return;
        }
        if ($answer === 'drop') {
            fclose($clients[$id][0]);
            unset($clients[$id]);
            return;
        }
        [$status, $body, $headers] = $answer + [2 => []];
        $text = \is_string($body) ? $body : json_encode($body);
        $head = "HTTP/1.1 $status X\r\nContent-Length: " . \strlen($text) . "\r\n";
        foreach ($headers as $name => $value) {
            $head .= "$name: $value\r\n";
        }
        fwrite($clients[$id][0], "$head\r\n$text");
    }

    private static function request(string $bytes): ?array
    {
        $end = strpos($bytes, "\r\n\r\n");
        if ($end === false) {
            return null;
        }
        $lines = explode("\r\n", substr($bytes, 0, $end));
        [$method, $path] = explode(' ', array_shift($lines));
        $headers = [];
        foreach ($lines as $line) {
            [$name, $value] = explode(': ', $line, 2);
            $headers[strtolower($name)] = $value;
        }
        $text = substr($bytes, $end + 4);
        if (\strlen($text) < (int) ($headers['content-length'] ?? 0)) {
            return null;
        }
        $body = json_decode($text, true);
        return ['method' => $method, 'path' => $path, 'body' => $body, 'text' => $text, 'headers' => $headers];
    }
}

<?php

return [
    'name' => 'shop', 'env' => 'local', 'debug' => true, 'timezone' => 'UTC', 'locale' => 'en',
    'key' => 'base64:' . base64_encode(str_repeat('s', 32)), 'cipher' => 'AES-256-CBC',
    'providers' => [
        Illuminate\Bus\BusServiceProvider::class,
        Illuminate\Cache\CacheServiceProvider::class,
        Illuminate\Foundation\Providers\ConsoleSupportServiceProvider::class,
        Illuminate\Database\DatabaseServiceProvider::class,
        Illuminate\Encryption\EncryptionServiceProvider::class,
        Illuminate\Filesystem\FilesystemServiceProvider::class,
        Illuminate\Mail\MailServiceProvider::class,
        Illuminate\Queue\QueueServiceProvider::class,
        Illuminate\View\ViewServiceProvider::class,
        Tickr\Laravel\TickrServiceProvider::class,
    ],
    'aliases' => [],
];

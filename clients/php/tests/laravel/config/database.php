<?php

return [
    'default' => 'sqlite',
    'connections' => [
        'sqlite' => [
            'driver' => 'sqlite', 'database' => getenv('TICKR_TEST_DIR') . '/test.sqlite', 'prefix' => '',
        ],
        'shop' => [
            'driver' => 'mysql', 'unix_socket' => getenv('TICKR_TEST_MYSQL_SOCKET') ?: '', 'host' => 'localhost',
            'database' => getenv('TICKR_TEST_MYSQL_DATABASE') ?: 'tickr', 'username' => 'root', 'password' => '',
            'charset' => 'utf8mb4', 'collation' => 'utf8mb4_bin', 'prefix' => '',
        ],
    ],
    'migrations' => 'migrations',
];
